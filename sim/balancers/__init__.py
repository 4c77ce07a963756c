"""Load balancers: which of the equally short ways a packet takes at a switch. One file each, one line here.

A balancer is a class (derived from `Balancer` in `base`) with one compiled function

    choose(M, node, ways, n, A, B, count, now) -> index below n

called where there is more than one way (n > 1). `M[ways + i]` is the record of the i-th way's port, `count` the number
of packets this switch has balanced before, `now` the time of arrival in picoseconds. Where hosts choose the ways,
packet by packet, it has a second one, `pick`, and may have a third, `heard` (see `base`).
"""

KINDS = {
    "ecmp": "gradwire.sim.balancers.ecmp:Ecmp",
    "ecmp_weighted": "gradwire.sim.balancers.ecmp_weighted:EcmpWeighted",
    "spray_random": "gradwire.sim.balancers.spray_random:SprayRandom",
    "spray_round_robin": "gradwire.sim.balancers.spray_round_robin:SprayRoundRobin",
    "least_queue": "gradwire.sim.balancers.least_queue:LeastQueue",
    "flowlet": "gradwire.sim.balancers.flowlet:Flowlet",
    "flowlet_least_queue": "gradwire.sim.balancers.flowlet_least_queue:FlowletLeastQueue",
    "source_random": "gradwire.sim.balancers.source_random:SourceRandom",
    "source_round_robin": "gradwire.sim.balancers.source_round_robin:SourceRoundRobin",
    "reps": "gradwire.sim.balancers.reps:Reps",
}
