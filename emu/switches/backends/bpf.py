"""Switch backend `bpf`: see `gradwire.emu.switches.backends.bpf_backend`."""

from gradwire.emu.switches.backend import Backend


class Bpf(Backend):
    """htb with a BPF program that drops and marks exactly as in the plan."""

    kind = "bpf"
    module = "gradwire.emu.switches.backends.bpf_backend"
    balancers = ("ecmp", "spray_random", "spray_round_robin")  # in the order of port.c
