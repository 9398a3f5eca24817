// Which packets of an interface go to Starling: UDP datagrams for a device's own address and port
// that arrive on the device's own queue, and are whole. Everything else goes on into the kernel as
// if there were no program.
//
// The datagrams for some port that go on are counted, so that a device, which also has the port in
// the kernel, knows without a system call that something is there for it.
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
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES * SOCKETS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

// Datagrams passed on to the kernel by destination port; those whose port is not seen, because
// they have options or extension headers or are fragments, count for port 0.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} passed SEC(".maps");

static __always_inline int pass(__be16 port)
{
	__u32 key = bpf_ntohs(port);
	__u64 *count = bpf_map_lookup_elem(&passed, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
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
	struct udphdr *udp;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *v4 = (void *)(eth + 1);
		if ((void *)(v4 + 1) > data_end || v4->protocol != IPPROTO_UDP)
			return XDP_PASS;
		if (v4->version != 4 || v4->ihl != 5 || v4->frag_off & bpf_htons(IP_FRAGMENT))
			return pass(0);
		address[0] = v4->daddr;
		udp = (void *)(v4 + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *v6 = (void *)(eth + 1);
		if ((void *)(v6 + 1) > data_end || v6->version != 6)
			return XDP_PASS;
		if (v6->nexthdr == IPPROTO_TCP || v6->nexthdr == IPPROTO_ICMPV6)
			return XDP_PASS;
		if (v6->nexthdr != IPPROTO_UDP)
			return pass(0);
		__builtin_memcpy(address, &v6->daddr, sizeof(address));
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
	// What is for a group of hosts, or too large for the device, is the kernel's.
	if (eth->h_dest[0] & 1 || bpf_xdp_get_buff_len(xdp) > queue->max_frame)
		return pass(udp->dest);
	long action = bpf_redirect_map(&sockets, index * SOCKETS, XDP_PASS);
	if (action != XDP_REDIRECT)
		return pass(udp->dest);
	return action;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
