"""Switch backend `red`: see `gradwire.emu.switches.backends.red_backend`."""

from gradwire.emu.switches.backend import Backend


class Red(Backend):
    """Features of most kernels: htb, red, netem and nftables, without BPF."""

    kind = "red"
    module = "gradwire.emu.switches.backends.red_backend"
    balancers = ("ecmp", "spray_random", "spray_round_robin")
