"""`gradwire` as a command with real trouble around it: started, watched, ended, and nothing left behind.

Processes are known by a folder of the test that is in their environment (their TMPDIR) or in their command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result

ROOT = Path(__file__).resolve().parents[2]
GRADWIRE = [sys.executable, "-m", "gradwire"]
LIMIT_S = 150.0
"""Longest time of one command, on a busy machine."""
NO_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]

SCENARIO = """
name = "trouble"
topology = { kind = "star", hosts = 3 }
link = { rate = "10Mbps", latency = "100us" }
host = { software_latency = "500us" }
switch = { queues = 8, buffer = "16KiB", ecn_threshold = "8KiB", selective_drop = true }
transport = { kind = "dlcp", payload = "1400B" }
[[traffic]]
kind = "incast"
name = "in"
fan_in = 2
receiver = "h0"
size = "70kB"
bound = 0.1
droppable = true
rounds = ROUNDS
period = "200ms"
"""
SHORT, LONG = SCENARIO.replace("ROUNDS", "2"), SCENARIO.replace("ROUNDS", "4000")
USERSPACE = ("--switch", "userspace")
VIRTUAL = ("--clock", "virtual")


class Place:
    """A folder of a test, with scenarios in it, and `gradwire` there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir()
        (folder / "short.toml").write_text(SHORT)
        (folder / "long.toml").write_text(LONG)
        self.environment = os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}

    def start(self, *arguments: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
        """gradwire ..., in the folder. Ctrl-C at the terminal of the tests is not for it."""
        return subprocess.Popen(
            [*before, *GRADWIRE, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> tuple[int, str, str]:
        """(exit code, stdout, last line of stderr) of a command, that leaves nothing behind."""
        try:
            said, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"not over after {limit_s:g} s: {process.communicate()[1][-2000:]}") from None
        assert "Traceback" not in errors, errors
        self.nothing_is_left()
        messages = [line for line in errors.splitlines() if line.startswith("gradwire: ")]
        assert len(messages) == (process.returncode not in (0, 1) or bool(messages)), errors
        return process.returncode, said, messages[0] if messages else errors.strip()

    def run(self, *arguments: str, before: Sequence[str] = (), **environment: str) -> tuple[int, str, str]:
        return self.end(self.start(*arguments, before=before, **environment))

    def ours(self) -> dict[int, str]:
        """Processes whose environment or command line has the folder in it."""
        found, mark = {}, str(self.temporary).encode()
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and int(place.name) != os.getpid():
                try:
                    words = (place / "cmdline").read_bytes()
                    if mark in words or mark in (place / "environ").read_bytes():
                        found[int(place.name)] = words.replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
        return found

    def nothing_is_left(self, wait_s: float = 10.0) -> None:
        """Soon after."""
        deadline = time.monotonic() + wait_s
        while (self.ours() or list(self.temporary.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.ours() == {} and list(self.temporary.iterdir()) == []

    def when_running(self, process: subprocess.Popen[str], agents: int = 3, seconds: float = 60.0) -> int:
        """Wait until the runner has started its agents and a little longer; the runner's process."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            for number, words in self.ours().items():
                if (
                    "gradwire.emu.control.runner" in words
                    and "unshare" not in words
                    and len(children(number)) >= agents
                ):
                    time.sleep(1.5)
                    return number
            time.sleep(0.05)
        raise AssertionError(f"it has not begun: {process.communicate(timeout=10)}")


def children(process: int) -> list[int]:
    try:
        return sorted(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except OSError:
        return []


def has_open(process: int, path: Path) -> bool:
    """Whether a process has a file open."""
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            if os.readlink(link) == str(path):
                return True
        except OSError:
            continue
    return False


def check_partial(folder: Path, ended_by: str) -> Result:
    """What is left of a run that was cut is a Result, with what had happened by then."""
    result = Result.read(folder)
    assert (result.summary["totals"]["ended_by"], result.summary["totals"]["finished"]) == (ended_by, False)
    rows = result.messages.to_pylist()
    done = [row for row in rows if row["end_ps"] >= 0]
    assert len(rows) > 0 and check_loss_invariant(result) == []
    assert all(row["received_bytes"] + row["lost_bytes"] == row["bytes"] == 70_000 for row in done)
    assert all(0 <= row["received_bytes"] < row["bytes"] for row in rows if row["end_ps"] < 0)
    assert result.summary["totals"]["messages_under_way"] == len(rows) - len(done)
    return result


def when_begun(process: subprocess.Popen[str], seconds: float = 100.0) -> None:
    """Wait until a line of progress says that messages have arrived."""
    assert process.stderr is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        assert line, "it has ended"
        if "messages" in line and " 0/" not in line:
            return
    raise AssertionError("it has not begun")
