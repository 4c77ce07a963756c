"""What an agent plays and what it carries, made from its plan."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from emu.agent.base import Loop
from emu.plan import Plan


def make_parts(plan: Plan, node: int, loop: Loop, send: Callable[[int], None]) -> tuple[Any, Any]:
    """(script, contents) of a host: see `emu.agent.script` and `emu.agent.contents`."""
    script, contents = import_module("emu.agent.script"), import_module("emu.agent.contents")
    magnitudes = import_module("emu.agent.magnitudes")
    part = script.part_of(plan.program, node)
    # on the wall clock the software's latency passes by itself
    latency = plan.software_latency_ps if plan.clock == "virtual" else 0
    values = [magnitudes.Magnitudes(folder) for folder in plan.trace_folders]
    payloads = [transport.payload for transport in plan.transports]
    return script.Script(part, loop, send, latency), contents.Contents(part, values, payloads, plan.seed)
