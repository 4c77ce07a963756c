"""Real machines: the same agents, started over ssh, with the network that is there between them.

Nothing is built and nothing is counted but at the hosts: the policy of the switches is whatever it is. A machine
needs this project and the interpreter that can import it. The agents' clocks are compared beforehand
(`gradwire.emu.control.controller.Controller`), within half of the fastest round trip of a question, which the Result
tells; so times across two machines are as exact as that.
"""

from __future__ import annotations

import math
import os
import platform
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gradwire.emu.agent.stream import TOKEN_BYTES
from gradwire.emu.control.controller import Controller
from gradwire.emu.control.launchers import Command
from gradwire.emu.planning.plan import Plan
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.raw import Raw
from gradwire.scenarios.arrays import JsonView
from gradwire.scenarios.schema.emulation import RealHost

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""Without questions that nobody would answer [ssh_config(5)]."""
EXACT_NS = 100_000
"""Clocks that are known less exactly are worth a word (our choice)."""


def plan_for(plan: Plan, hosts: Sequence[RealHost]) -> Plan:
    """The plan with the addresses of the machines, and the files that they cannot see in it.

    Raises
    ------
    TestbedError
        A host of the scenario that does something has no machine, or a machine no host.
    """
    of = {host.name: host for host in hosts}
    unknown = [name for name in of if name not in plan.names[: plan.host_count]]
    if unknown:
        names = ", ".join(plan.names[: min(8, plan.host_count)])
        raise TestbedError(f"there is no host {unknown[0]!r}", "emulation.hosts", f"one of {names}")
    lacking = [plan.names[node] for node in plan.program.hosts if plan.names[node] not in of]
    if lacking:
        raise TestbedError(
            f"no machine for {', '.join(lacking[:4])}", "emulation.hosts", "one for every host that does something"
        )
    addresses = {node: of[plan.names[node]].address for node in plan.program.hosts}
    files = {
        folder: {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        for folder in plan.trace_folders
    }
    # others can reach these machines, too, and are not to be taken for hosts of this run
    token = secrets.token_bytes(TOKEN_BYTES)
    return replace(plan, options={**plan.options, "addresses": addresses, "files": files, "token": token})


def command_of(host: RealHost) -> list[str]:
    """What starts the agent of a host."""
    if host.command:
        return list(host.command)
    folder = shlex.quote(os.getcwd())
    there = f"cd {folder} 2>/dev/null; exec {shlex.quote(host.python)} -m gradwire.emu.agent"
    return [*SSH, "--", host.ssh, there]


def run_on_machines(
    plan: Plan,
    hosts: Sequence[RealHost],
    heard: Callable[[JsonView], None] | None = None,
    limit_s: float = math.inf,
) -> Raw:
    """Run a plan (of `plan_for`) on real machines; Ctrl-C and the limit end it in order. TestbedError: as
    `Controller.run`."""
    end = time.monotonic() + limit_s

    def check() -> list[str]:
        if time.monotonic() > end:
            raise KeyboardInterrupt
        return []

    of = {host.name: host for host in hosts}
    told = None if heard is None else lambda d, m: heard({"state": "running", "delivered": d, "messages": m})
    controller = Controller(plan, Command(lambda node: command_of(of[plan.names[node]])), told, check)
    raw = Raw(controller.reports, kernel=platform.release())
    try:
        raw.reports = controller.run()
    except KeyboardInterrupt:
        raw.reports = controller.reports
        raw.reports.ended_by = "max_wall" if time.monotonic() > end else "interrupt"
    raw.complaints += raw.reports.problems
    return raw


def differences(raw: Raw) -> list[str]:
    """What to know of such a run."""
    found = ["real machines: switches, links and their queues are what they are, and not counted"]
    worst = max(raw.reports.round_trips.values(), default=0)
    if worst // 2 > EXACT_NS:
        found.append(f"the machines' clocks are known to within {worst / 2e6:.2f} ms of each other")
    return found
