"""Switch backend `bpf`: see `gradwire.emu.switches.bpf`."""

from gradwire.emu.switches.manifest import Backend


class Bpf(Backend):
    """htb, and a BPF program that drops and marks exactly as the plan says."""

    kind = "bpf"
    module = "gradwire.emu.switches.bpf"
    balancers = ("ecmp", "spray_random", "spray_round_robin")  # in the order of port.c
