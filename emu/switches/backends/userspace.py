"""Declares requirements and departures of the switch backend `userspace`, one process for all switches, which
`gradwire.emu.switches.userspace_switch` implements.

The backend needs only TUN and network namespaces, follows the simulator's rules exactly
(`gradwire.emu.switches.userspace_switch.rules`), and sees every lost packet. It is neither fast nor always on time: on
the wall clock a packet is delivered when the process is scheduled, which `substitutions` and `check` report. In virtual
time computing takes no time, so none of that matters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.emu.switches.backend_kind import BALANCERS, Backend

if TYPE_CHECKING:
    from gradwire.emu.planning.kernel_features import KernelFeatures
    from gradwire.emu.planning.plan import TestbedPlan
    from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
    from gradwire.jit.engine_cache import CompileTask

PACKETS_PER_S = 60_000
"""Rate above which `substitutions` warns. Measured on two cores: 280,000 packets/s over one switch if they are ready in
the devices, but 10 us of processor time each if it is woken for every one, mostly in the kernel. Our choice, since
hosts need the same cores."""


class Userspace(Backend):
    """One process that implements all switches and links, connected to hosts by TUN devices."""

    kind = "userspace"
    keeps_time = True

    def missing(self, kernel: KernelFeatures | None, plan: TestbedPlan) -> list[str]:
        """Return why it cannot run this plan; `kernel` None: as far as this process can tell."""
        reasons = _missing_here() if kernel is None else _missing_of(kernel)
        if plan.balancing not in BALANCERS:
            reasons.append(f"load balancing {plan.balancing} is not one of {', '.join(BALANCERS)}")
        return reasons

    def substitutions(self, kernel: KernelFeatures | None, plan: TestbedPlan) -> list[str]:
        from gradwire.emu.switches.userspace_switch import host_nic, process

        departures = []
        if host_nic.is_needed(plan) and (missing := host_nic.missing_features(kernel)):
            departures.append(
                "the kernel's TCP passes all packets to the host's port at once, where a real NIC would hold them "
                f"back; missing on this kernel: {', '.join(missing)}"
            )
        if plan.clock == "wall":
            early = process.early_ps(plan) / 1e6
            departures.append(
                f"a packet may be delivered up to {early:g} us early, together with others; that compensates for some "
                "of the delay of hosts' answers"
            )
        rate = sum(port.rate for port in plan.ports if port.src < plan.host_count)
        packets = rate // (8 * plan.largest_frame())
        if plan.clock == "wall" and packets > PACKETS_PER_S:
            departures.append(
                f"all hosts together may send {packets:,} packets/s, more than the about {PACKETS_PER_S:,} of one "
                "process: packets may be late, which is counted"
            )
        return departures

    def build_units(self) -> Mapping[str, CompileTask]:
        from gradwire.emu.switches.userspace_switch import compiled_switch

        return {compiled_switch.SWITCH: compiled_switch.work()}

    def make(self, plan: TestbedPlan, kernel: KernelFeatures | None = None) -> UserspaceSwitch:
        from gradwire.emu.switches.userspace_switch import host_nic
        from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch

        return UserspaceSwitch(plan, cards=host_nic.is_needed(plan) and not host_nic.missing_features(kernel))


def _missing_here() -> list[str]:
    from gradwire.emu.switches.userspace_switch.tun import DEVICE
    from gradwire.emu.system import namespaces

    reasons = []
    if os.geteuid() != 0:
        reasons.append("network namespaces and TUN devices need root")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        missing = not Path(DEVICE).exists()
        reasons.append(f"{DEVICE} " + ("does not exist" if missing else "cannot be opened"))
    if namespaces.find_tool("ip") is None:
        reasons.append("command not found: ip (iproute2)")
    return reasons


def _missing_of(kernel: KernelFeatures) -> list[str]:
    reasons = []
    if kernel.namespaces:
        reasons.append(f"no network namespaces: {kernel.namespaces}")
    elif kernel.tun:
        reasons.append(f"no TUN devices: {kernel.tun}")
    return reasons + kernel.lacks([("tool", "ip")])
