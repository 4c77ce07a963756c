"""Load balancers: which of the equally short ways a packet takes at a switch. One file each.

A balancer is a class (derived from `Balancer` in `base`) with one compiled function

    choose(M, node, ways, n, A, B, count, now) -> index below n

called where there is more than one way (n > 1). `M[ways + i]` is the record of the i-th way's port, `count` the number
of packets this switch has balanced before, `now` the time of arrival in picoseconds. Where hosts choose the ways,
packet by packet, it has a second one, `pick`, and may have a third, `heard` (see `base`).
"""
