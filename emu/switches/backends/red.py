"""Declares the requirements and departures from a plan of the switch backend `red`, whose networks
`gradwire.emu.switches.linux_network.red_switch` builds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.emu.switches.linux_backend import LinuxBackend

if TYPE_CHECKING:
    from gradwire.emu.planning.kernel_features import KernelFeatures
    from gradwire.emu.planning.plan import TestbedPlan
    from gradwire.emu.switches.linux_network.red_switch import RedSwitch


class Red(LinuxBackend):
    """Features of most kernels: htb, red, netem and nftables, without BPF."""

    kind = "red"

    def missing(self, kernel: KernelFeatures, plan: TestbedPlan) -> list[str]:
        required = [("classifier", "u32")]
        if plan.queues.thresholds is not None:
            required.append(("qdisc", "red"))
        if _losses(plan):
            required += [("qdisc", "netem"), ("qdisc", "clsact")]
        if kernel.netem_works:
            required.append(("action", "mirred"))
        missing = super().missing(kernel, plan) + kernel.lacks(required)
        if plan.balancing != "ecmp":
            if not kernel.has("tool", "nft"):
                missing.append(kernel.explain_missing("tool", "nft"))
            elif kernel.nft_numgen:
                missing.append(f"nftables cannot spray packets: {kernel.nft_numgen}")
        return missing

    def substitutions(self, kernel: KernelFeatures, plan: TestbedPlan) -> list[str]:
        departures = super().substitutions(kernel, plan)
        queues = plan.queues
        if queues.count > 1:
            sizes = [queues.limit(queue) for queue in range(queues.count)]
            span = " to ".join(f"{size}" for size in sorted({min(sizes), max(sizes)}))
            departures.append(f"red: every queue of a port has a buffer of {span} bytes, which the scenario's share")
        if queues.thresholds is not None and queues.selective_drop:
            departures.append(
                "red: the threshold is tested before the buffer, so a droppable packet that exceeds both counts as a "
                "selective drop"
            )
        elif queues.thresholds is not None:
            departures.append("red: a marked packet that is then dropped by the buffer also counts as marked")
        if plan.balancing in ("ecmp", "spray_random") and any(len(ports) > 1 for ports in plan.routes.values()):
            departures.append("red: next hops are drawn by the kernel, not from the scenario's seed")
        if any(0 < loss < 1 for loss in _losses(plan)):
            departures.append("red: losses on cables are drawn by netem, not from the scenario's seed")
        departures.append("red: lost packets are counted but not listed; the peak queue length is unknown")
        return departures

    def make(self, plan: TestbedPlan, kernel: KernelFeatures) -> RedSwitch:
        from gradwire.emu.switches.linux_network.red_switch import RedSwitch

        return RedSwitch(plan, wired=kernel.netem_works)


def _losses(plan: TestbedPlan) -> list[float]:
    """Return the loss probabilities of cables, initial and later ones; empty if there are none."""
    later = [loss for change in plan.changes for _, loss in change.loss]
    return [loss for loss in (*(port.loss for port in plan.ports), *later) if loss]
