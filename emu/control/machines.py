"""Runs a plan's agents over ssh on real machines, across the existing network between them.

No network is built, and only hosts count packets; the switches' policy is their own. A machine needs this project and
an interpreter that can import it. The agents' clocks are compared beforehand
(`gradwire.emu.control.controller.Controller`), within half of the fastest round trip of a query, which the Result
reports; times across two machines are only that accurate.
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

from gradwire.emu.agent.frame_stream import TOKEN_BYTES
from gradwire.emu.control.controller import Controller, RunObserver
from gradwire.emu.control.launchers import CommandLauncher
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.schema.emulation import RealHost

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""No interactive questions [ssh_config(5)]."""
CLOCK_NOTE_NS = 100_000
"""Clock uncertainty above which the Result has a note (our choice)."""


def plan_for(plan: TestbedPlan, hosts: Sequence[RealHost]) -> TestbedPlan:
    """Return the plan with the machines' addresses and the files that they cannot read. Raises TestbedError: an active
    host of the scenario has no machine, or a machine no host."""
    machine_of = {host.name: host for host in hosts}
    unknown = [name for name in machine_of if name not in plan.names[: plan.host_count]]
    if unknown:
        names = ", ".join(plan.names[: min(8, plan.host_count)])
        raise TestbedError(f"no such host: {unknown[0]!r}", "emulation.hosts", f"one of {names}")
    missing = [plan.names[node] for node in plan.program.hosts if plan.names[node] not in machine_of]
    if missing:
        raise TestbedError(
            f"no machine for {', '.join(missing[:4])}", "emulation.hosts", "one for every host that sends or receives"
        )
    addresses = {node: machine_of[plan.names[node]].address for node in plan.program.hosts}
    files = {
        folder: {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        for folder in plan.trace_folders
    }
    # other processes can reach these machines; the token identifies hosts of this run
    token = secrets.token_bytes(TOKEN_BYTES)
    return replace(plan, options={**plan.options, "addresses": addresses, "files": files, "token": token})


def command_of(host: RealHost) -> list[str]:
    if host.command:
        return list(host.command)
    folder = shlex.quote(os.getcwd())
    remote_command = f"cd {folder} 2>/dev/null; exec {shlex.quote(host.python)} -m gradwire.emu.agent"
    return [*SSH, "--", host.ssh, remote_command]


def run_on_machines(
    plan: TestbedPlan,
    hosts: Sequence[RealHost],
    on_report: Callable[[JsonView], None] | None = None,
    limit_s: float = math.inf,
) -> RawResults:
    """Run a plan (of `plan_for`) on real machines; Ctrl-C and the limit end it in order. Raises TestbedError as
    `Controller.run` does."""
    end = time.monotonic() + limit_s

    class MachineObserver(RunObserver):
        def check(self) -> Sequence[str]:
            if time.monotonic() > end:
                raise KeyboardInterrupt
            return ()

        def progress(self, delivered: int, messages: int) -> None:
            if on_report is not None:
                on_report({"state": "running", "delivered": delivered, "messages": messages})

    machine_of = {host.name: host for host in hosts}
    launcher = CommandLauncher(lambda node: command_of(machine_of[plan.names[node]]))
    controller = Controller(plan, launcher, MachineObserver())
    raw = RawResults(controller.reports, kernel=platform.release())
    try:
        raw.reports = controller.run()
    except KeyboardInterrupt:
        raw.reports = controller.reports
        raw.reports.ended_by = "max_wall" if time.monotonic() > end else "interrupt"
    raw.complaints += raw.reports.problems
    return raw


def machine_notes(raw: RawResults) -> list[str]:
    notes = ["real machines: their switches, links and queues are neither configured nor counted"]
    worst = max(raw.reports.round_trips.values(), default=0)
    if worst // 2 > CLOCK_NOTE_NS:
        notes.append(f"the machines' clocks agree to within {worst / 2e6:.2f} ms")
    return notes
