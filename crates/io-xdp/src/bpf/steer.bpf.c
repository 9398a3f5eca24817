// This program decides which packets of an interface a device receives by its AF_XDP socket: whole
// UDP datagrams for the device's own address and port that arrive on the device's own queue. The
// kernel gets all other packets, as if there were no program.
//
// A device also has its port in the kernel. The program counts the datagrams that it passes on, by
// port. So a device knows without a system call when to look at its kernel socket.
//
// A device may have workers, each with a socket of its own on the queue. The device's process says
// in a match table which datagrams are for workers. The program gives such a datagram to the worker
// with the fewest outstanding, as long as that worker has fewer than its bound. RPCValet places
// requests in this way (Daglis, Sutherland, Falsafi, ASPLOS 2019, sections 3 and 4). Processes can
// write the memory with the table and the counts. Whatever they write, a datagram goes to one of
// the device's own sockets.
//
// `cargo xtask bpf` builds the object beside this file, which is what a process loads.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Queues of an interface that can have a device, and sockets of each queue. The first socket is the
// dispatcher's.
#define QUEUES 64
#define SOCKETS 64

// The bits of an offset in a match table. The verifier wants to know a limit.
#define OFFSET_MASK 0xff

// The program tells keys apart by so many low bits.
#define KEY_BITS 12

// The bits of an IPv4 header's fragment field that are set in fragments. The reserved bit and "do
// not fragment" are not among them.
#define IP_FRAGMENT 0x3fff

// Which datagrams the device on a queue receives.
struct queue {
	// As in packets. Zeros follow an IPv4 address.
	__u64 address[2];
	// Largest Ethernet frame, in bytes. Zero: the queue has no device.
	__u32 max_frame;
	__be16 port;
	// The Ethernet type of the address.
	__be16 family;
	// The interface's hardware address.
	__be16 mac[3];
	// The program runs after the kernel has merged datagrams: see is_unfinished().
	__u16 is_generic;
};

// Which payloads are for workers: `MatchTable` in crates/io.
struct match {
	// The first bytes of the payload, and the bits of them that count.
	__u64 value[2];
	__u64 mask[2];
	// Offset of a little-endian 16-bit number, and the offset from which it counts the bytes to
	// the payload's end.
	__u32 length_at;
	__u32 length_from;
	// Offset of a little-endian 32-bit key.
	__u32 key_at;
	__u32 reserved;
};

// The workers of the device on a queue. Its process writes all of it. The program writes `taken`,
// too.
struct steering {
	// How many workers. Worker w has socket w + 1.
	__u32 workers;
	// The most datagrams that each may have.
	__u32 depth;
	// Largest Ethernet frame for a worker, in bytes.
	__u32 max_frame;
	// How much the dispatcher holds until a worker is free. Nothing overtakes it.
	__u32 held;
	struct match match;
	// One bit for each key that is for workers, by its low bits.
	__u64 keys[(1 << KEY_BITS) / 64];
	// How much each worker was ever given, and how much it has completed.
	__u32 taken[SOCKETS];
	__u32 completed[SOCKETS];
};

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

// The place of the count of datagrams with an unseen port.
#define UNSEEN 65536

// Datagrams passed on to the kernel, by destination port. The program does not see the port behind
// options or extension headers, or of a fragment. Such a datagram may be for any port.
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

// Whether UDP may follow the header that an IPv6 header names next: options for routers or for the
// destination, a route, a fragment, authentication.
static __always_inline int may_hide_udp(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS || next == IPPROTO_ROUTING ||
	       next == IPPROTO_FRAGMENT || next == IPPROTO_AH;
}

// Whether a datagram's checksum is still only the sum of the pseudo header. In generic mode such a
// datagram may be several of one flow that the sending host or this one has merged. Nothing else
// tells it from a single large datagram. The kernel knows, and takes them apart.
static __always_inline int is_unfinished(struct udphdr *udp, __u16 *addresses, __u32 words)
{
	__u32 sum = bpf_htons(IPPROTO_UDP) + udp->len;
	for (__u32 word = 0; word < words; word++)
		sum += addresses[word];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return udp->check == sum;
}

// The worker that gets the datagram, counted from 1, with the datagram counted for it. 0: the
// dispatcher gets it.
static __always_inline __u32 worker_for(struct xdp_md *xdp, struct udphdr *udp, void *data_end,
					__u32 index)
{
	struct steering *steer = bpf_map_lookup_elem(&steering, &index);
	if (!steer || !steer->workers || steer->held)
		return 0;
	if (bpf_xdp_get_buff_len(xdp) > steer->max_frame)
		return 0;
	struct match *match = &steer->match;
	void *payload = udp + 1;
	__u64 *start = payload;
	if ((void *)(start + 2) > data_end)
		return 0;
	if ((start[0] ^ match->value[0]) & match->mask[0] ||
	    (start[1] ^ match->value[1]) & match->mask[1])
		return 0;
	// Numbers are little-endian, as the object is.
	__u16 *length = payload + (match->length_at & OFFSET_MASK);
	if ((void *)(length + 1) > data_end)
		return 0;
	if (*length + sizeof(*udp) + match->length_from != bpf_ntohs(udp->len))
		return 0;
	__u32 *found = payload + (match->key_at & OFFSET_MASK);
	if ((void *)(found + 1) > data_end)
		return 0;
	__u32 key = *found & ((1 << KEY_BITS) - 1);
	if (!(steer->keys[key / 64] >> (key % 64) & 1))
		return 0;

	// The least of (load, worker), without branches: the verifier would follow both sides of a
	// branch in every round.
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
	// The dispatcher may have given the worker something in the meantime.
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
	// The kernel gets multicast, and what is for another host (an interface in promiscuous mode
	// sees that), and what is too large for the device.
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
