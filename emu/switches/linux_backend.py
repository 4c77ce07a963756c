"""`LinuxBackend`, base class of the backends `red` and `bpf`, declares their common requirements and departures from a
plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.emu.switches.backend_kind import AHEAD_NS, Backend

if TYPE_CHECKING:
    from gradwire.emu.planning.kernel_features import KernelFeatures
    from gradwire.emu.planning.plan import TestbedPlan

REQUIRED = (("qdisc", "htb"), ("qdisc", "bfifo"), ("tool", "ip"), ("tool", "tc"))


class LinuxBackend(Backend):
    """A backend whose networks are `gradwire.emu.switches.linux_network.kernel_switch.KernelSwitch`."""

    ahead_ns = 2 * AHEAD_NS
    """Our choice: a port of the kernel takes `queueing.WALL_FRAMES` at once and runs empty earlier. `dlcp-four` at 100
    Mbit/s on `bpf`, seven pairs of runs: 7.5 % longer than simulated instead of 9.3 % with half the lead; but 12 of
    these 14 were disturbed. With `userspace` transports would react later."""

    def missing(self, kernel: KernelFeatures, plan: TestbedPlan) -> list[str]:
        missing = [f"no private namespaces: {kernel.namespaces}"] if kernel.namespaces else []
        missing += kernel.lacks(REQUIRED)
        several = [plan.names[node] for node in range(plan.host_count) if len(plan.ports_of_node(node)) > 1]
        if several:
            missing.append(f"hosts with several cables, such as {several[0]}")
        return missing

    def substitutions(self, kernel: KernelFeatures, plan: TestbedPlan) -> list[str]:
        from gradwire.emu.switches.linux_network.queueing import slack_bytes

        departures = []
        if not kernel.netem_works:
            latencies = sorted({port.latency_ps for port in plan.ports})
            slowest = min(port.rate for port in plan.ports)
            transmission_us = plan.largest_frame() * 8e6 / slowest
            span = " to ".join(f"{latency / 1e6:g}" for latency in dict.fromkeys((latencies[0], latencies[-1])))
            departures.append(
                f"no netem: cables have no latency (the scenario has {span} us), and a packet arrives when its "
                f"transmission begins, not when it ends (up to {transmission_us:.0f} us earlier per link)"
            )
        if plan.clock == "wall":
            ahead = max(slack_bytes(plan, port) for port in plan.ports)
            departures.append(f"a port may be up to {ahead} bytes ahead of its rate after an idle time or a late timer")
            fastest = max(port.rate for port in plan.ports)
            if 0 <= kernel.reachable_bps < fastest:
                departures.append(
                    f"rates: the fastest port has {fastest / 1e6:g} Mbit/s, but this machine sustained only "
                    f"{kernel.reachable_bps / 1e6:g} with one port"
                )
        return departures
