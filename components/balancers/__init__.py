"""Load balancers: which of the equally short ways a packet takes at a switch. One file each, one line here.

A balancer is a class (derived from `Balancer` in `base`) with one compiled function

    choose(M, node, ways, n, A, B, count, now) -> index below n

called where there is more than one way (n > 1). `M[ways + i]` is the record of the i-th way's port, `count` the number
of packets this switch has balanced before, `now` the time of arrival in picoseconds. Where hosts choose the ways,
packet by packet, it has a second one, `pick`, and may have a third, `heard` (see `base`).
"""

KINDS = {
    "ecmp": "gradwire.components.balancers.ecmp:Ecmp",
    "ecmp_weighted": "gradwire.components.balancers.ecmp_weighted:EcmpWeighted",
    "spray_random": "gradwire.components.balancers.spray_random:SprayRandom",
    "spray_round_robin": "gradwire.components.balancers.spray_round_robin:SprayRoundRobin",
    "least_queue": "gradwire.components.balancers.least_queue:LeastQueue",
    "flowlet": "gradwire.components.balancers.flowlet:Flowlet",
    "flowlet_least_queue": "gradwire.components.balancers.flowlet_least_queue:FlowletLeastQueue",
    "source_random": "gradwire.components.balancers.source_random:SourceRandom",
    "source_round_robin": "gradwire.components.balancers.source_round_robin:SourceRoundRobin",
    "reps": "gradwire.components.balancers.reps:Reps",
}
