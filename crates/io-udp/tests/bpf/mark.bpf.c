// A switch that marks: turns ECT(0) into CE on every so many UDP datagrams that pass, IPv4 and
// IPv6. Two programs with one body, because they see different things of the same traffic:
//
//   mark_tc   where the kernel's own stack gives packets to an interface: a run of datagrams that
//             is to be segmented later is one packet here, with one IP header
//   mark_xdp  where an interface receives: single datagrams, as on a wire, before GRO merges them
//
// Built by `cargo xtask bpf`; the object beside it is what tests load.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ECN_MASK 3
#define ECT_0 2
#define CE 3

// What the test and the programs tell each other.
enum word {
	EVERY, // one packet in so many is marked; 0: none
	SEEN, // packets that could have been
	MARKED, // packets that were
	WORDS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WORDS);
	__type(key, __u32);
	__type(value, __u64);
} words SEC(".maps");

static __always_inline int is_due(void)
{
	__u32 key = EVERY;
	__u64 *every = bpf_map_lookup_elem(&words, &key);
	key = SEEN;
	__u64 *seen = bpf_map_lookup_elem(&words, &key);
	key = MARKED;
	__u64 *marked = bpf_map_lookup_elem(&words, &key);
	if (!every || !seen || !marked)
		return 0;
	// The packets of a test come one after the other: no atomics.
	*seen += 1;
	if (!*every || *seen % *every)
		return 0;
	*marked += 1;
	return 1;
}

static __always_inline void mark(void *data, void *data_end)
{
	struct ethhdr *eth = data;
	if ((void *)(eth + 1) > data_end)
		return;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > data_end || ip->protocol != IPPROTO_UDP)
			return;
		if ((ip->tos & ECN_MASK) != ECT_0 || !is_due())
			return;
		ip->tos |= CE;
		// The first word of the header grew by one: RFC 1624, equation 3.
		__u32 sum = (__u16)~bpf_ntohs(ip->check) + 1;
		ip->check = bpf_htons(~(sum + (sum >> 16)));
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > data_end || ip->nexthdr != IPPROTO_UDP)
			return;
		// The traffic class lies across two bytes, its ECN bits in the second.
		if ((ip->flow_lbl[0] >> 4 & ECN_MASK) != ECT_0 || !is_due())
			return;
		ip->flow_lbl[0] |= CE << 4;
	}
}

SEC("classifier")
int mark_tc(struct __sk_buff *skb)
{
	mark((void *)(long)skb->data, (void *)(long)skb->data_end);
	return TC_ACT_UNSPEC;
}

SEC("xdp")
int mark_xdp(struct xdp_md *xdp)
{
	mark((void *)(long)xdp->data, (void *)(long)xdp->data_end);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
