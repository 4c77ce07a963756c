"""Queue policies: the treatment of a packet that arrives at a filling egress queue. One file each.

A packet is first admitted to the buffer: the port's own, or the switch's shared one (`_full` in
`gradwire.sim.engine.core.port`).
"""
