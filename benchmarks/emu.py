"""Runs `gradwire bench emu`, which measures the testbed's speed (switch rules, TUN devices, agents, virtual machine)
and prints a table.

* `core`: the rules of the userspace switch alone (`gradwire.emu.switches.userspace_switch.fabric`), without input or
  output: eight hosts that all send, around one switch and on a leaf-spine with packets sprayed.
* `tun`: the userspace switch with real TUN devices, in private namespaces: packets from one host to another, at most
  `WINDOW` of them in flight. The links are much faster than the switch.
* `agents`: one large DLCP message between two hosts over real UDP sockets, on the wall clock. The links are faster than
  the agents, and than `gradwire emulate` would accept; the row says so.
* `virtual`: four hosts send to one at the same time inside the kernel for virtual time, over links of 10 Gbps.

`packets` are sent by hosts, acknowledgements included; `hops` are packets crossing a link, counted at all ports.
`wall s` is the wall time without the start of processes, networks or kernels; `boot s` is the time from the start of
the virtual machine to the first word of its runner, a Python program, and `build_s` (in JSON) that until all agents are
connected. `Mbit/s` is the delivered payload over the message's own time, on the row's clock. Every row runs three
times, each in a separate process, alternating with the other rows of its case; the run of median wall time counts.
Deliveries are verified as in every run of the testbed.

Rows that this machine cannot run, and disturbed runs, are listed below the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradwire.benchmarks.rows import BenchmarkError, Columns, Row, print_json, print_table, run_module
from gradwire.scenarios.errors import GradwireError

CASES = ("core", "tun", "agents", "virtual")
REPEATS = 3
ROW_TIMEOUT_S = 300
CORE_PACKETS = 200_000
"""Packets per host."""
TUN_PACKETS, TUN_PAYLOADS = 100_000, (100, 1400)
"""Payload bytes of UDP."""
MESSAGE, INCAST_MESSAGE = 40_000_000, 1_000_000
WALL_BACKENDS, VIRTUAL_BACKENDS = ("bpf", "userspace"), ("red", "bpf", "userspace")


def _figure(name: str, form: str) -> Callable[[Row], str]:
    return lambda row: form.format(row[name]) if name in row else "-"


COLUMNS: Columns = {
    "case": lambda row: row["case"],
    "what": lambda row: row["what"],
    "transport": lambda row: row.get("transport", ""),
    "packets": _figure("packets", "{:,}"),
    "hops": _figure("hops", "{:,}"),
    "wall s": _figure("wall_s", "{:.2f}"),
    "packets/s": _figure("packets_per_s", "{:,}"),
    "hops/s": _figure("hops_per_s", "{:,}"),
    "Mbit/s": _figure("mbps", "{:,.0f}"),
    "virtual ms per s": _figure("virtual_ms_per_s", "{:.3g}"),
    "boot s": _figure("boot_s", "{:.2f}"),
}


def bench_emu(*, case: str | None, as_json: bool) -> None:
    """Run all cases, or one; print a table, or one JSON object.

    Raises GradwireError if `case` is unknown, or nothing of it can run here; or, after all others have been printed,
    rows failed.
    """
    if case is not None and case not in CASES:
        raise GradwireError("no such benchmark", "bench emu", f"--case {', '.join(CASES)}")
    rows: list[Row] = []
    for name in CASES if case is None else (case,):
        rows += _medians(list(rows_of(name)))
    failed = [f"{_title(row)}: {row['failed']}" for row in rows if "failed" in row]
    shown = [row for row in rows if "failed" not in row]
    if all("refused" in row for row in rows):
        reasons = "; ".join(dict.fromkeys(row["refused"] for row in rows))
        raise GradwireError(f"nothing can run here: {reasons}", "bench emu")
    if as_json:
        print_json(shown)
    elif shown:
        _print(shown)
    if failed:
        raise BenchmarkError("\n".join(failed), f"{len(failed)} of {len(rows)} rows", "runs that end")


def rows_of(case: str) -> Iterator[Row]:
    """Yield the rows of a case: keyword arguments of `gradwire.benchmarks.emu_rows.run_row`."""
    if case == "core":
        for what in ("star", "leaf-spine"):
            yield {"case": case, "what": what, "size": CORE_PACKETS}
    elif case == "tun":
        for payload in TUN_PAYLOADS:
            yield {"case": case, "what": f"{payload} B", "size": TUN_PACKETS, "payload": payload}
    elif case == "agents":
        for backend in WALL_BACKENDS:
            yield {"case": case, "what": backend, "size": MESSAGE, "transport": "dlcp"}
    else:
        for transport in ("dlcp", "cubic"):
            for backend in VIRTUAL_BACKENDS:
                yield {"case": case, "what": backend, "size": INCAST_MESSAGE, "transport": transport}


def _title(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (row["case"], row["what"], row.get("transport"))))


def _medians(group: list[Row]) -> list[Row]:
    """Run rows alternately, several times, and return each row's run of median wall time; failed rows are not
    repeated."""
    runs: list[list[Row]] = [[] for _ in group]
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


def in_own_process(row: Mapping[str, Any]) -> Row:
    """Return the result of `emu_rows.run_row` in a separate process, for `tun` in private namespaces.

    A row that the machine cannot run has "refused" with the reason. Raises BenchmarkError if it fails.
    """
    from gradwire.emu.switches.backend_kind import TestbedError
    from gradwire.emu.system.namespaces import private_command
    from gradwire.emu.system.processes import tied_to_parent

    is_private = row["case"] == "tun"
    try:
        if is_private:
            tried = subprocess.run(private_command(["true"]), capture_output=True, text=True, timeout=20)
            if tried.returncode:
                return {**row, "refused": f"private namespaces cannot be created ({tried.stderr.strip()})"}
        arguments = ["gradwire.benchmarks.emu_rows", json.dumps(row)]
        return run_module(
            arguments, _title(row), ROW_TIMEOUT_S, private_command if is_private else list, tied_to_parent()
        )
    except TestbedError as error:
        return {**row, "refused": str(error)}
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError("timeout of private namespaces", _title(row), "a faster machine") from error


def _print(rows: list[Row]) -> None:
    print_table(rows, COLUMNS, ("case", "what", "transport"), width=130)
    for row in rows:
        if text := f"not run: {row['refused']}" if "refused" in row else row.get("note", ""):
            print(f"{_title(row)}: {text}")
