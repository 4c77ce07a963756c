"""What an agent plays and what it carries, made from its plan."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.emu.agent.base import Loop
from gradwire.emu.agent.contents import Contents
from gradwire.emu.agent.host_part import part_of
from gradwire.emu.agent.script import Script
from gradwire.emu.agent.values import values_of
from gradwire.emu.planning.changes import slowness_of
from gradwire.emu.planning.plan import Plan


def make_parts(plan: Plan, node: int, loop: Loop, send: Callable[[int], None]) -> tuple[Script, Contents]:
    """(script, contents) of a host: see `gradwire.emu.agent.script` and `gradwire.emu.agent.contents`."""
    part = part_of(plan.program, node, [transport.important for transport in plan.transports])
    # on the wall clock the software's latency passes by itself
    latency = plan.software_latency_ps if plan.clock == "virtual" else 0
    values = [values_of(folder) for folder in plan.options.get("contents", plan.trace_folders)]
    payloads = [transport.payload for transport in plan.transports]
    script = Script(part, loop, send, latency, slowness=slowness_of(plan.changes, node))
    return script, Contents(part, values, payloads, plan.seed)
