"""Load balancers: the choice among the equal-cost next hops of a packet at a switch. One file each.

A balancer is a class (derived from `Balancer` in `base`) with one compiled function

choose(M, node, ways, n, A, B, count, now) -> index below n

called if there are several next hops (n > 1). `M[ways + i]` is the record of the i-th next hop's port, `count` the
number of packets that this switch has balanced before, `now` the time of arrival in picoseconds. If hosts choose the
paths, packet by packet, it has a second function, `pick`, and may have a third one for feedback (see `base`).
"""
