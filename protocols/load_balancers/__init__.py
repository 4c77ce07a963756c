"""Load balancers: choices among the equal-cost next hops of a packet, one file each.

A load balancer is a class derived from `Balancer` (`base`) with one compiled function of switches,

    select(switch, next_hops, hop_count, header, body, draws, now) -> index below hop_count

which is called if there are several next hops.

* `switch`: the record of the switch (`gradwire.jit.records.network.Switch`). Random numbers are `draw(switch.key,
  draws)`;
* `next_hops`: `Port(switch, next_hops[i])` is the egress port to next hop i;
* `header`, `body`: the packet's two header words (constants `A_` and `B_` in `gradwire.jit.records.constants`);
* `draws`: packets that this switch has balanced before;
* `now`: the time of arrival in picoseconds.

Hosts may choose the path instead, packet by packet: then the class also has `pick_path`, and for feedback
`on_feedback` (see `base`).
"""
