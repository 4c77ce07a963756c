"""The script and contents of an agent, made from its plan."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.emu.agent.base import Loop
from gradwire.emu.agent.host_part import part_of
from gradwire.emu.agent.payload.contents import Contents
from gradwire.emu.agent.payload.values import values_of
from gradwire.emu.agent.script import Script
from gradwire.emu.planning.fault_changes import slowness_of
from gradwire.emu.planning.plan import TestbedPlan


def make_parts(plan: TestbedPlan, node: int, loop: Loop, send: Callable[[int], None]) -> tuple[Script, Contents]:
    """Return (script, contents) of a host (`gradwire.emu.agent.script`, `gradwire.emu.agent.payload.contents`)."""
    part = part_of(plan.program, node, [transport.important for transport in plan.transports])
    # on the wall clock the software's latency passes by itself
    latency = plan.software_latency_ps if plan.clock == "virtual" else 0
    values = [values_of(folder) for folder in plan.options.get("contents", plan.trace_folders)]
    payloads = [transport.payload for transport in plan.transports]
    script = Script(part, loop, send, latency, slowness=slowness_of(plan.changes, node))
    return script, Contents(part, values, payloads, plan.seed)
