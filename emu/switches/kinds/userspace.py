"""Switch backend `userspace`: see `gradwire.emu.switches.userspace`."""

from gradwire.emu.switches.manifest import Backend


class Userspace(Backend):
    """One process is all switches and links; hosts hang on it by TUN devices."""

    kind = "userspace"
    module = "gradwire.emu.switches.userspace"
    balancers = ("ecmp", "spray_random", "spray_round_robin")  # in the order of its rules
