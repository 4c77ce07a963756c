"""What programs of the user's own have of the traffic beside them: devices and kernels of hosts are everybody's."""

from __future__ import annotations

from gradwire.emu.planning.plan import Plan
from gradwire.emu.planning.prepare import kernel_options
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_time
from gradwire.scenarios.wire import ETHERNET

PS_PER_NS = 1000


def shared(scenario: Scenario, plan: Plan) -> list[str]:
    """What is otherwise than [exec] says of packets and TCP, in words; nothing without traffic."""
    table = scenario.exec or Exec()
    if not scenario.traffic:
        return []
    found = []
    if (size := plan.largest_frame() - ETHERNET) > table.mtu:
        found.append(
            f"IP packets of programs have up to {size} bytes, not {table.mtu} (exec.mtu), as the traffic's have: a "
            "smaller payload of its transport makes them smaller"
        )
    options, words = kernel_options(scenario), []
    if "min_rto_ns" in options and table.min_rto is None:
        words.append(f"a smallest time-out of {format_time(Ps(options['min_rto_ns'] * PS_PER_NS))}")
    if "initcwnd" in options:
        words.append(f"an initial window of {options['initcwnd']} packets")
    if "tcp_ecn" in options and not table.ecn:
        words.append("the wish for congestion marks")
    if words:
        found.append(f"TCP of programs has what the traffic's has at their hosts: {', '.join(words)}")
    return found
