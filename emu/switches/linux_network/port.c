/*
 * A switch port in the kernel: drops, marks and next hops of packets. emu/switches/linux_network/bpf_switch.py compiles
 * this file after declarations of struct port, queue, way, node and drop, and explains their fields.
 *
 * Three programs for traffic control:
 *
 *   enqueue   the classifier of a port's root queueing discipline. It runs under that discipline's lock, so no other
 *             instance runs for the same port. It decides by the current queue, and returns the packet's class.
 *   release   at the far end of the port's cable, where a packet is seen as soon as the port has released it: this is
 *             the start of its transmission. Packets not yet released are the queue: counted, not computed from the
 *             rate, so it is correct even if the machine is late. Random loss happens here.
 *   choose    at the entrance of a switch with several next hops to the packet's destination.
 *
 * The file needs no headers; the parts of the kernel's interface that it uses are below.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid;
};

enum { TC_ACT_UNSPEC = -1, TC_ACT_OK = 0, TC_ACT_SHOT = 2 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*ktime_get_ns)(void) = (void *)5;
static long (*redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*load_bytes)(const void *skb, u32 offset, void *to, u32 len) = (void *)26;
static long (*set_ce)(struct __sk_buff *skb) = (void *)97;

#define MAP __attribute__((section("maps"), used))
#define PROGRAM(name) __attribute__((section("tc/" name), used))
#define INLINE static inline __attribute__((always_inline))

int ports MAP, queues MAP, ways MAP, nodes MAP, drops MAP;

enum { TAIL, SELECTIVE, LOSS };
enum { ECMP, SPRAY_RANDOM, SPRAY_ROUND_ROBIN };

struct ipv4 {
	u8 version, tos;
	u16 length, id, fragment;
	u8 ttl, protocol;
	u16 checksum;
	u8 src[4], dst[4];
	u8 src_port[2], dst_port[2];
};

INLINE u64 mix(u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ULL;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Return a draw of 32 bits from the splitmix64 sequence that starts at key. */
INLINE u64 draw(u64 key, u64 count)
{
	return mix(key + (count + 1) * 0x9e3779b97f4a7c15ULL) >> 32;
}

INLINE u32 queue_of(const struct ipv4 *ip, u64 count)
{
	u32 queue = 7 - (ip->tos >> 5);

	return queue < count ? queue : count - 1;
}

/* List a lost packet if there is space; the gradwire header, if any, identifies it. */
INLINE void list_drop(struct __sk_buff *skb, struct port *port, const struct ipv4 *ip, u64 now, u64 cause, u64 number)
{
	u64 nth = __sync_fetch_and_add(&port->listed, 1);
	u32 at = port->list_first + nth;
	struct drop *drop;
	u8 header[14];

	if (nth >= port->list_size)
		return;
	drop = map_lookup(&drops, &at);
	if (!drop)
		return;
	drop->time = now;
	drop->port = number;
	drop->cause = cause;
	drop->important = (ip->tos & 3) != 0;
	drop->priority = 7 - (ip->tos >> 5);
	drop->known = 0;
	if (ip->protocol == 17 && (ip->dst_port[0] << 8 | ip->dst_port[1]) == GRADWIRE_PORT &&
	    load_bytes(skb, 14 + 20 + 8, header, sizeof(header)) == 0) {
		drop->message = (u64)header[0] << 24 | header[1] << 16 | header[2] << 8 | header[3];
		drop->packet = (u64)header[10] << 24 | header[11] << 16 | header[12] << 8 | header[13];
		drop->known = 1;
	}
}

PROGRAM("enqueue") int enqueue(struct __sk_buff *skb)
{
	u32 number = skb->ifindex - DEVICE, index, verdict = TC_ACT_OK;
	struct port *port = map_lookup(&ports, &number);
	struct queue *queue;
	struct ipv4 ip = {};
	u64 now, ps, work, last, ahead = 0, waiting, here, len = skb->len;

	if (!port)
		return TC_ACT_SHOT;
	load_bytes(skb, 14, &ip, sizeof(ip));
	index = queue_of(&ip, port->classes);
	skb->tc_classid = 0x10 + index;
	index += number * 8;
	queue = map_lookup(&queues, &index);
	if (!queue)
		return TC_ACT_SHOT;

	/* A port may catch up after the machine was late, and then releases a packet early. Such a packet still counts as
	 * waiting: the bytes on the wire are at most those of the packet released last. */
	now = ktime_get_ns();
	ps = (now - port->epoch) * 1000;
	work = port->wire_until > ps ? port->wire_until - ps : 0;
	last = port->last_bytes * port->byte_ps;
	if (last && work > last)
		ahead = port->last_bytes * ((work - 1) / last);
	waiting = port->in_bytes - port->out_bytes + ahead;
	here = queue->in_bytes - queue->out_bytes + (port->last_queue == index ? ahead : 0);

	if (work || waiting) {
		if (waiting + len > port->buffer || here + len > queue->limit) {
			port->drops_tail++;
			queue->drops_tail++;
			list_drop(skb, port, &ip, now, TAIL, number);
			return TC_ACT_SHOT;
		}
		if (here >= queue->threshold) {
			if (ip.tos & 3) {
				if (set_ce(skb)) {
					port->marks++;
					queue->marks++;
				}
			} else if (port->selective) {
				port->drops_selective++;
				queue->drops_selective++;
				list_drop(skb, port, &ip, now, SELECTIVE, number);
				return TC_ACT_SHOT;
			}
		}
		if (waiting + len > port->peak)
			port->peak = waiting + len;
	}
	port->in_packets++;
	port->in_bytes += len;
	queue->in_packets++;
	queue->in_bytes += len;
	return verdict;
}

PROGRAM("release") int release(struct __sk_buff *skb)
{
	u32 wired = skb->ifindex >= WIRE, number = wired ? skb->ifindex - WIRE : (skb->ifindex - DEVICE) ^ 1, index;
	struct port *port = map_lookup(&ports, &number);
	struct queue *queue;
	struct ipv4 ip = {};
	u64 now, ps, nth, len = skb->len;

	if (!port)
		return TC_ACT_SHOT;
	load_bytes(skb, 14, &ip, sizeof(ip));
	index = number * 8 + queue_of(&ip, port->classes);
	queue = map_lookup(&queues, &index);
	if (!queue)
		return TC_ACT_SHOT;

	now = ktime_get_ns();
	ps = (now - port->epoch) * 1000;
	port->wire_until = (port->wire_until > ps ? port->wire_until : ps) + len * port->byte_ps;
	port->last_bytes = len;
	port->last_queue = index;
	__sync_fetch_and_add(&port->out_bytes, len);
	__sync_fetch_and_add(&queue->out_bytes, len);
	__sync_fetch_and_add(&queue->out_packets, 1);
	nth = __sync_fetch_and_add(&port->out_packets, 1);
	if (port->loss && draw(port->key, nth) < port->loss) {
		__sync_fetch_and_add(&port->drops_loss, 1);
		__sync_fetch_and_add(&queue->drops_loss, 1);
		list_drop(skb, port, &ip, now, LOSS, number);
		return TC_ACT_SHOT;
	}
	return wired ? redirect(skb->ifindex ^ 1, 0) : TC_ACT_UNSPEC;
}

PROGRAM("choose") int choose(struct __sk_buff *skb)
{
	u32 number = skb->ifindex - DEVICE, at;
	struct port *port = map_lookup(&ports, &number);
	struct node *node;
	struct way *way;
	struct ipv4 ip = {};
	u64 key, flow;

	if (!port || load_bytes(skb, 14, &ip, sizeof(ip)))
		return TC_ACT_UNSPEC;
	if (ip.dst[0] != 10 || ip.dst[1] & 0xc0) /* not a host address, see emu/planning/plan.py */
		return TC_ACT_UNSPEC;
	at = port->node;
	node = map_lookup(&nodes, &at);
	if (!node)
		return TC_ACT_UNSPEC;
	at = node->first_way + ((ip.dst[1] & 63) << 16 | ip.dst[2] << 8 | ip.dst[3]) - 1;
	way = map_lookup(&ways, &at);
	if (!way || way->count < 2)
		return TC_ACT_UNSPEC;
	if (node->balancing == SPRAY_ROUND_ROBIN) {
		skb->mark = 1 + __sync_fetch_and_add(&node->dealt, 1) % way->count;
	} else if (node->balancing == SPRAY_RANDOM) {
		skb->mark = 1 + (draw(node->key, __sync_fetch_and_add(&node->dealt, 1)) * way->count >> 32);
	} else {
		flow = (u64)ip.src[1] << 56 | (u64)ip.src[2] << 48 | (u64)ip.src[3] << 40 | (u64)ip.dst[1] << 32 |
		       (u64)ip.dst[2] << 24 | (u64)ip.dst[3] << 16 | ip.protocol;
		key = (u64)ip.src_port[0] << 24 | ip.src_port[1] << 16 | ip.dst_port[0] << 8 | ip.dst_port[1];
		skb->mark = 1 + ((mix(mix(node->key ^ flow) ^ key) >> 32) * way->count >> 32);
	}
	return TC_ACT_UNSPEC;
}
