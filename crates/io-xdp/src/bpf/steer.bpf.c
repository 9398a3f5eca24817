// Which packets of an interface go to Starling: UDP datagrams for a device's own address and port
// that arrive on the device's own queue, and are whole. Everything else goes on into the kernel as
// if there were no program.
//
// The datagrams for some port that go on are counted, so that a device, which also has the port in
// the kernel, knows without a system call that something is there for it.
//
// A device may have workers, each with a socket of its own on the queue. A datagram that is one
// whole request for them goes straight to the one with the fewest outstanding, as long as that has
// fewer than its bound: what RPCValet has network interfaces do (Daglis, Sutherland, Falsafi,
// ASPLOS 2019, sections 3 and 4). The counts that this goes by are memory that processes can write.
// Whatever they say, a request goes to one of the device's own sockets.
//
// Built by `cargo xtask bpf`; the object beside it is what is loaded.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Queues of an interface that devices can be on, and sockets for each: the first is the
// dispatcher's.
#define QUEUES 64
#define SOCKETS 64

// What a datagram of one request begins with: PROTOCOL.md, sections 2 and 3.
#define MAGIC 0x5a
#define VERSION 1
#define REQUEST 1
// The bits of a frame's kind that say what it is or who has to see it: kind, extension, want.
#define KIND_MASK 0xbf

// Methods are told apart by so many low bits of their id.
#define METHOD_BITS 12

// Reserved bit aside, what of an IPv4 header's fragment field says that there are others.
#define IP_FRAGMENT 0x3fff

// What the device on a queue takes.
struct queue {
	// As it stands in packets; that of IPv4 has zeros behind it.
	__u64 address[2];
	// Largest frame, in bytes; zero: there is no device.
	__u32 max_frame;
	__be16 port;
	// The Ethernet type of the address.
	__be16 family;
	// The interface's hardware address.
	__be16 mac[3];
	// The program runs behind what merges datagrams: see is_unfinished().
	__u16 is_generic;
};

// The workers of the device on a queue, written by its process but for `taken`, which both write.
struct steering {
	// How many; worker w has socket w + 1.
	__u32 workers;
	// Requests that each may have.
	__u32 depth;
	// Largest frame for a worker, in bytes.
	__u32 max_frame;
	// Requests that the dispatcher holds for the next worker that is free: nobody overtakes them.
	__u32 held;
	// One bit for each method that workers run, by the low bits of its id.
	__u64 methods[(1 << METHOD_BITS) / 64];
	// Requests that each worker was ever given, and those that it is done with.
	__u32 taken[SOCKETS];
	__u32 completed[SOCKETS];
};

// The start of a datagram of one plain request, and of the call in it.
struct request {
	__u8 magic;
	__u8 version;
	__u16 zero;
	__u32 token;
	__u8 kind;
	__u8 slot;
	__u16 length;
	__u32 session;
	__u64 number;
	__u32 method;
} __attribute__((packed));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, struct steering);
} steering SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES * SOCKETS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

// Where those are counted whose port is not seen.
#define UNSEEN 65536

// Datagrams passed on to the kernel by destination port. The port of those that have options or
// extension headers or are fragments is not seen: they may be for any.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, UNSEEN + 1);
	__type(key, __u32);
	__type(value, __u64);
} passed SEC(".maps");

static __always_inline int pass_counted(__u32 key)
{
	__u64 *count = bpf_map_lookup_elem(&passed, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}

static __always_inline int pass(__be16 port)
{
	return pass_counted(bpf_ntohs(port));
}

// Whether UDP may be behind what an IPv6 header names next: options for routers or the
// destination, a route, a fragment, authentication.
static __always_inline int may_hide_udp(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS || next == IPPROTO_ROUTING ||
	       next == IPPROTO_FRAGMENT || next == IPPROTO_AH;
}

// Whether a datagram's checksum is not there yet but for the sum of the pseudo header. In generic mode
// it may then be several of one flow, merged by the host that sent them or by this one, which nothing
// else tells from one that is as large. The kernel knows, and takes them apart.
static __always_inline int is_unfinished(struct udphdr *udp, __u16 *addresses, __u32 words)
{
	__u32 sum = bpf_htons(IPPROTO_UDP) + udp->len;
	for (__u32 word = 0; word < words; word++)
		sum += addresses[word];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return udp->check == sum;
}

// Bytes of a datagram's payload before the call: preamble and frame header.
#define BEFORE_CALL __builtin_offsetof(struct request, method)

// The worker that gets the datagram, counted from 1 and counted for it; 0: the dispatcher.
static __always_inline __u32 worker_for(struct xdp_md *xdp, struct udphdr *udp, void *data_end,
					__u32 index)
{
	struct steering *steer = bpf_map_lookup_elem(&steering, &index);
	if (!steer || !steer->workers || steer->held)
		return 0;
	struct request *request = (void *)(udp + 1);
	if ((void *)(request + 1) > data_end || bpf_xdp_get_buff_len(xdp) > steer->max_frame)
		return 0;
	if (request->magic != MAGIC || request->version != VERSION ||
	    (request->kind & KIND_MASK) != REQUEST)
		return 0;
	// One frame, which fills the datagram. The numbers of the protocol are little-endian, as the
	// object is.
	if (request->length + sizeof(*udp) + BEFORE_CALL != bpf_ntohs(udp->len))
		return 0;
	__u32 method = request->method & ((1 << METHOD_BITS) - 1);
	if (!(steer->methods[method / 64] >> (method % 64) & 1))
		return 0;

	// The least of (load, worker), without branches: for each of them the verifier would follow
	// both ways, in every round.
	__u64 least = ~0ULL >> 1;
	for (__u32 worker = 0; worker < SOCKETS - 1; worker++) {
		if (worker >= steer->workers)
			break;
		__u32 load = steer->taken[worker] - steer->completed[worker];
		__u64 candidate = (__u64)load << 8 | worker;
		__u64 is_less = (__s64)(candidate - least) >> 63;
		barrier_var(is_less);
		least ^= (candidate ^ least) & is_less;
		barrier_var(least);
	}
	__u32 depth = steer->depth;
	__u32 best = least & 0xff;
	if (least >> 8 >= depth || best >= SOCKETS - 1)
		return 0;
	// The dispatcher may have been faster.
	__u32 before = __sync_fetch_and_add(&steer->taken[best], 1);
	if (before - steer->completed[best] < depth)
		return best + 1;
	__sync_fetch_and_sub(&steer->taken[best], 1);
	return 0;
}

SEC("xdp.frags")
int starling_steer(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data;
	void *data_end = (void *)(long)xdp->data_end;
	__u32 index = xdp->rx_queue_index;

	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	__u64 address[2] = {};
	__u16 *addresses;
	__u32 words;
	struct udphdr *udp;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *v4 = (void *)(eth + 1);
		if ((void *)(v4 + 1) > data_end || v4->protocol != IPPROTO_UDP)
			return XDP_PASS;
		if (v4->version != 4 || v4->ihl != 5 || v4->frag_off & bpf_htons(IP_FRAGMENT))
			return pass_counted(UNSEEN);
		address[0] = v4->daddr;
		addresses = (void *)&v4->saddr;
		words = 4;
		udp = (void *)(v4 + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *v6 = (void *)(eth + 1);
		if ((void *)(v6 + 1) > data_end || v6->version != 6)
			return XDP_PASS;
		if (may_hide_udp(v6->nexthdr))
			return pass_counted(UNSEEN);
		if (v6->nexthdr != IPPROTO_UDP)
			return XDP_PASS;
		__builtin_memcpy(address, &v6->daddr, sizeof(address));
		addresses = (void *)&v6->saddr;
		words = 16;
		udp = (void *)(v6 + 1);
	} else {
		return XDP_PASS;
	}
	if ((void *)(udp + 1) > data_end)
		return XDP_PASS;

	struct queue *queue = bpf_map_lookup_elem(&queues, &index);
	if (!queue || udp->dest != queue->port || eth->h_proto != queue->family)
		return pass(udp->dest);
	if (address[0] != queue->address[0] || address[1] != queue->address[1])
		return pass(udp->dest);
	// What is for a group of hosts or another one, which an interface sees that listens to all, or
	// too large for the device, is the kernel's.
	__be16 *to = (void *)eth->h_dest;
	if (to[0] != queue->mac[0] || to[1] != queue->mac[1] || to[2] != queue->mac[2])
		return pass(udp->dest);
	if (bpf_xdp_get_buff_len(xdp) > queue->max_frame)
		return pass(udp->dest);
	if (queue->is_generic && is_unfinished(udp, addresses, words))
		return pass(udp->dest);
	__u32 worker = worker_for(xdp, udp, data_end, index);
	if (worker && bpf_redirect_map(&sockets, index * SOCKETS + worker, XDP_PASS) == XDP_REDIRECT)
		return XDP_REDIRECT;
	long action = bpf_redirect_map(&sockets, index * SOCKETS, XDP_PASS);
	if (action != XDP_REDIRECT)
		return pass(udp->dest);
	return action;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
