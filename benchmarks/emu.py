"""Speed of the testbed: `gradwire bench emu`.

* `core`: the rules of the userspace switch alone (`gradwire.emu.userspace.fabric`), without input or output: eight
  hosts that all send, around one switch and on a leaf-spine with packets sprayed.
* `tun`: the userspace switch with real TUN devices, in private namespaces: packets of one host to another, of which
  never more than `WINDOW` are under way. The links are much faster than the switch.
* `agents`: one large DLCP message between two hosts over real UDP sockets, on the wall clock. The links are faster than
  the agents, and than what `gradwire emulate` would accept; the row says so.
* `virtual`: four hosts send to one at the same time inside the kernel for virtual time, over links of 10 Gbps.

`packets` are what hosts send, acknowledgements included; `hops` are packets crossing a link, as all ports count them.
`wall s` is the time that this took, without starting processes, networks or kernels; `boot s` is the time from the
start of the virtual machine until its runner, a Python program, says its first word, and `build_s` (in JSON) that until
all agents are connected. `Mbit/s` is the payload delivered over the message's own time, on the clock that counts there.
Every row runs three times, each in a process of its own, by turns with the other rows of its case; the run of median
wall time counts. What was delivered is verified as in every run of the testbed.

What this machine cannot run is said below the table, as is what disturbed a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gradwire
from gradwire.benchmarks.fabric import BenchmarkError, machine
from gradwire.scenarios.errors import GradwireError

CASES = ("core", "tun", "agents", "virtual")
REPEATS = 3
ROW_TIMEOUT_S = 300
CORE_PACKETS = 200_000
"""Per host."""
TUN_PACKETS, TUN_PAYLOADS = 100_000, (100, 1400)
"""Bytes behind the UDP header."""
MESSAGE, INCAST_MESSAGE = 40_000_000, 1_000_000
WALL_BACKENDS, VIRTUAL_BACKENDS = ("bpf", "userspace"), ("red", "bpf", "userspace")
COLUMNS = {
    "packets": ("packets", "{:,}"), "hops": ("hops", "{:,}"), "wall s": ("wall_s", "{:.2f}"),
    "packets/s": ("packets_per_s", "{:,}"), "hops/s": ("hops_per_s", "{:,}"), "Mbit/s": ("mbps", "{:,.0f}"),
    "virtual ms per s": ("virtual_ms_per_s", "{:.3g}"), "boot s": ("boot_s", "{:.2f}"),
}  # fmt: skip


def bench_emu(*, case: str | None, as_json: bool) -> None:
    """Run all cases, or one; print a table, or one JSON object.

    Raises
    ------
    GradwireError
        `case` names none of them, or nothing of it can run here; or, after all others have been shown, rows that did
        not end well.
    """
    if case is not None and case not in CASES:
        raise GradwireError("no such benchmark", "bench emu", f"--case {', '.join(CASES)}")
    rows: list[dict[str, Any]] = []
    for name in CASES if case is None else (case,):
        rows += _medians(list(rows_of(name)))
    failed = [f"{_title(row)}: {row['failed']}" for row in rows if "failed" in row]
    shown = [row for row in rows if "failed" not in row]
    if all("refused" in row for row in rows):
        told = "; ".join(dict.fromkeys(row["refused"] for row in rows))
        raise GradwireError(f"nothing of this can run here: {told}", "bench emu")
    if as_json:
        print(json.dumps({"machine": machine(), "rows": shown}))
    elif shown:
        _print(shown)
    if failed:
        raise BenchmarkError("\n".join(failed), f"{len(failed)} of {len(rows)} rows", "runs that end")


def rows_of(case: str) -> Iterator[dict[str, Any]]:
    """What a case measures: keyword arguments of `gradwire.benchmarks.emu_rows.run_row`."""
    if case == "core":
        for what in ("star", "leaf-spine"):
            yield {"case": case, "what": what, "size": CORE_PACKETS}
    elif case == "tun":
        for many in TUN_PAYLOADS:
            yield {"case": case, "what": f"{many} B", "size": TUN_PACKETS, "payload": many}
    elif case == "agents":
        for each in WALL_BACKENDS:
            yield {"case": case, "what": each, "size": MESSAGE, "transport": "dlcp"}
    else:
        for transport in ("dlcp", "cubic"):
            for each in VIRTUAL_BACKENDS:
                yield {"case": case, "what": each, "size": INCAST_MESSAGE, "transport": transport}


def _title(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (row["case"], row["what"], row.get("transport"))))


def _medians(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run rows by turns, several times; of each the run of median wall time. What cannot run, or fails, is not tried
    again."""
    runs: list[list[dict[str, Any]]] = [[] for _ in group]
    for turn in range(1, REPEATS + 1):
        for row, done in zip(group, runs, strict=True):
            if done and "wall_s" not in done[-1]:
                continue
            print(f"{_title(row)}, run {turn}/{REPEATS}", file=sys.stderr, flush=True)
            try:
                done.append(in_own_process(row))
            except BenchmarkError as error:
                done.append({**row, "failed": error.what})
    for done in runs:
        if "wall_s" in done[-1]:
            done.sort(key=lambda run: float(run["wall_s"]))
            done.append(done[len(done) // 2])
    return [done[-1] for done in runs]


def in_own_process(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `gradwire.benchmarks.emu_rows.run_row` returns in a process of its own, for `tun` in private namespaces that
    end with it. If the machine cannot run it, the row has "refused", which says why. Raises BenchmarkError if it fails.
    """
    from gradwire.emu.switches.base import TestbedError
    from gradwire.emu.system.namespaces import private_command, tied

    root = str(Path(gradwire.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "gradwire.benchmarks.emu_rows", json.dumps(row)]
    try:
        if row["case"] == "tun":
            command = private_command(command)
            tried = subprocess.run(private_command(["true"]), capture_output=True, text=True, timeout=20)
            if tried.returncode:
                return {**row, "refused": f"private namespaces cannot be made ({tried.stderr.strip()})"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ROW_TIMEOUT_S, preexec_fn=tied()
        )
    except TestbedError as error:
        return {**row, "refused": str(error)}
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"no end after {ROW_TIMEOUT_S} s", _title(row), "a faster machine") from error
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-2000:], _title(row), "a run that ends")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="{processor}, {cores} cores, Python {python}".format(**machine()))
    for head in ("case", "what", "transport"):
        table.add_column(head)
    for head in COLUMNS:
        table.add_column(head, justify="right")
    for row in rows:
        cells = [form.format(row[name]) if name in row else "-" for name, form in COLUMNS.values()]
        table.add_row(row["case"], row["what"], row.get("transport", ""), *cells)
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    for row in rows:
        if said := f"not run: {row['refused']}" if "refused" in row else row.get("note", ""):
            print(f"{_title(row)}: {said}")
