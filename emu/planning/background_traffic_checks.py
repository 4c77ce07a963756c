"""Effects of background traffic on user programs, which share its devices and host kernels."""

from __future__ import annotations

from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.planning.planner import kernel_options
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_time
from gradwire.scenarios.wire import ETHERNET

PS_PER_NS = 1000


def traffic_side_effects(scenario: Scenario, plan: TestbedPlan) -> list[str]:
    """Return messages about IP packets and TCP settings that differ from [exec] because of the traffic."""
    table = scenario.exec or Exec()
    if not scenario.traffic:
        return []
    messages = []
    if (size := plan.largest_frame() - ETHERNET) > table.mtu:
        messages.append(
            f"IP packets of programs have up to {size} bytes instead of {table.mtu} (exec.mtu), the size of the "
            "traffic's packets: lower the payload of its transport"
        )
    options, tcp_settings = kernel_options(scenario), []
    if "min_rto_ns" in options and table.min_rto is None:
        tcp_settings.append(f"a minimum RTO of {format_time(Ps(options['min_rto_ns'] * PS_PER_NS))}")
    if "initcwnd" in options:
        tcp_settings.append(f"an initial window of {options['initcwnd']} packets")
    if "tcp_ecn" in options and not table.ecn:
        tcp_settings.append("ECN")
    if tcp_settings:
        messages.append(f"TCP of programs shares settings of the traffic at their hosts: {', '.join(tcp_settings)}")
    return messages
