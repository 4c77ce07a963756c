"""Switch backend `userspace`: see `gradwire.emu.switches.backends.userspace_backend`."""

from gradwire.emu.switches.backend import Backend


class Userspace(Backend):
    """One process that implements all switches and links, connected to hosts by TUN devices."""

    kind = "userspace"
    module = "gradwire.emu.switches.backends.userspace_backend"
    balancers = ("ecmp", "spray_random", "spray_round_robin")  # in the order of its rules
