"""Switch backend `red`: see `gradwire.emu.switches.red`."""

from gradwire.emu.switches.manifest import Backend


class Red(Backend):
    """What most kernels have: htb, red, netem, nftables, and no BPF."""

    kind = "red"
    module = "gradwire.emu.switches.red"
    balancers = ("ecmp", "spray_random", "spray_round_robin")
