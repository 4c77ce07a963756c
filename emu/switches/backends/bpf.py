"""Declares the requirements of the switch backend `bpf`, whose networks
`gradwire.emu.switches.linux_network.bpf_switch` builds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.emu.switches.linux_backend import LinuxBackend

if TYPE_CHECKING:
    from gradwire.emu.planning.kernel_features import KernelFeatures
    from gradwire.emu.planning.plan import TestbedPlan
    from gradwire.emu.switches.linux_network.bpf_switch import BpfSwitch


class Bpf(LinuxBackend):
    """htb with a BPF program that drops and marks exactly as in the plan."""

    kind = "bpf"

    def missing(self, kernel: KernelFeatures, plan: TestbedPlan) -> list[str]:
        programs = [f"no BPF program: {kernel.bpf}"] if kernel.bpf else []
        return super().missing(kernel, plan) + programs + kernel.lacks([("qdisc", "clsact")])

    def ready(self) -> dict[str, str]:
        from gradwire.emu.switches.linux_network import bpf_switch

        return {"bpf_program": str(bpf_switch.object_file())}

    def make(self, plan: TestbedPlan, kernel: KernelFeatures) -> BpfSwitch:
        from gradwire.emu.switches.linux_network.bpf_switch import BpfSwitch

        program = plan.options.get("bpf_program")
        return BpfSwitch(plan, wired=kernel.netem_works, program=Path(str(program)) if program else None)
