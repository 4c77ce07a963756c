"""Queue policies: what a filling egress queue does with an arriving packet. One file each.

Whether the packet finds room at all is decided before: by the port's own buffer, or by the switch's shared one (`_full`
in `gradwire.sim.fabric.core.port`)."""
