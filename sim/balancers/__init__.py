"""Load balancers: which of the equally short ways a packet takes at a switch. One file each, one line here.

A balancer is a class with one compiled function `choose(M, node, A, B, n, count) -> index below n`, called where
there is more than one way (n > 1). `count` is the number of packets this switch has balanced before.
"""

KINDS = {
    "ecmp": "sim.balancers.ecmp:Ecmp",
    "spray_random": "sim.balancers.spray_random:SprayRandom",
    "spray_round_robin": "sim.balancers.spray_round_robin:SprayRoundRobin",
}
