"""What `gradwire emulate` does when something goes wrong: the real command, with real trouble.

Each time: one clear message on stderr and no traceback, the exit code that tells what kind of trouble it is, and nothing
left behind - no process, no temporary file. Processes are known by a folder of this test that is in their environment
(their TMPDIR) or in their command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from emu_cases import needs

from scenarios.result import Result, check_loss_invariant

ROOT = Path(__file__).resolve().parents[2]
GRADWIRE = [sys.executable, "-c", "import gradwire; gradwire.main()"]
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
                if "emu.runner" in words and "unshare" not in words and len(children(number)) >= agents:
                    time.sleep(1.5)
                    return number
            time.sleep(0.05)
        raise AssertionError(f"it has not begun: {process.communicate(timeout=10)}")


def children(process: int) -> list[int]:
    try:
        return sorted(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except OSError:
        return []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def check_partial(folder: Path, ended_by: str) -> Result:
    """What is left of a run that was cut is a Result, with what had happened by then."""
    result = Result.read(folder)
    assert (result.summary["totals"]["ended_by"], result.summary["totals"]["finished"]) == (ended_by, False)
    rows = result.messages.to_pylist()
    done = [row for row in rows if row["end_ps"] >= 0]
    assert len(rows) > 0 and check_loss_invariant(result) == []
    assert all(row["received_bytes"] + row["lost_bytes"] == row["bytes"] == 70_000 for row in done)
    assert all(row["received_bytes"] == 0 for row in rows if row["end_ps"] < 0)
    assert result.summary["totals"]["messages_under_way"] == len(rows) - len(done)
    return result


# input and machine: exit code 2, before anything is built


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "no scenario": (("nothing.toml",), "nothing.toml"),
    "no policy": (("short.toml", "--policy", "other"), 'no policy "other"'),
    "no backend": (("short.toml", "--switch", "ovs"), "--switch: there is no backend 'ovs'"),
    "no clock": (("short.toml", "--clock", "fast"), "--clock: there is no clock 'fast'"),
    "no time": (("short.toml", "--max-wall", "soon"), "--max-wall: is no wall-clock time"),
    "at without pcap": (("short.toml", "--at", "s0"), "--at: says where to capture, but not into which folder"),
    "no node": (("short.toml", "--pcap", "new", "--at", "h9", "--at", "s9"), "--at: there is no node 'h9', 's9'; expected h0,"),
    "pcap exists": (("short.toml", "--pcap", "tmp"), "tmp: exists already"),
    "out exists": (("short.toml", "--out", "short.toml"), "short.toml: exists already"),
    "out below a file": (("short.toml", "--out", "short.toml/new"), "short.toml/new: cannot be made in "),
    "pcap below a file": (("short.toml", "--pcap", "short.toml/new"), "short.toml/new: cannot be made in "),
    "all and pcap": (("short.toml", "--all", "--pcap", "new"), "--all: goes with neither"),
    "too many hosts": (("short.toml", "--set", "topology.hosts=100", *VIRTUAL), "topology: 100 hosts"),
    "no sample ports": (("short.toml", "--set", "output.queue_samples=1ms", "--set", 'output.sample_ports=["x"]', *VIRTUAL),
                        "the ports to be sampled are not in the network"),
}  # fmt: skip


@needs("uml")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_in_one_line(place: Place, name: str) -> None:
    arguments, words = MISTAKES[name]
    status, said, error = place.run("emulate", *arguments)
    assert (status, said) == (2, "") and words in error and ("expected" in error or name == "no sample ports")
    assert not (place.folder / "new").exists()


def test_everything_that_the_testbed_cannot_do_is_named_at_once(place: Place) -> None:
    (place.folder / "much.toml").write_text(
        SHORT.replace('"dlcp"', '"swift"').replace("selective_drop = true", 'shared_buffer = "64KiB"')
        + """
transport = { kind = "cubic", payload = "1400B", min_rto = "10ms" }
[[traffic]]
kind = "incast"
name = "other"
fan_in = 2
receiver = "h1"
size = "70kB"
transport = { kind = "tcp_newreno", payload = "1400B", min_rto = "20ms" }
[[traffic]]
kind = "incast"
name = "third"
fan_in = 2
receiver = "h2"
size = "70kB"
[output]
packet_log = true
delays = true
""".replace("bound = 0.1\ndroppable = true\n", "")
    )
    text = (place.folder / "much.toml").read_text().replace("bound = 0.1\ndroppable = true\n", "")
    (place.folder / "much.toml").write_text("load_balancing = \"flowlet\"\n" + text)
    done = subprocess.run(
        [*GRADWIRE, "emulate", "much.toml"], cwd=place.folder, env=place.environment, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert "the testbed cannot run this scenario" in done.stderr, done.stderr
    for where in ("switch.shared_buffer", "load_balancing", "transport: has no implementation", "transport.min_rto",
                  "output.packet_log", "output.delays"):  # fmt: skip
        assert f"  {where}" in done.stderr, where


@needs("namespaces")
def test_a_rate_out_of_reach_is_refused(place: Place) -> None:
    status, _, error = place.run("emulate", "short.toml", "--set", "link.rate=100Gbps", *USERSPACE)
    assert status == 2 and "100Gbps, out of reach of this machine on the wall clock; expected at most" in error


def test_a_backend_that_this_kernel_lacks(place: Place) -> None:
    from emu_cases import why_not

    if not (why_not("qdisc:red") or "").startswith("needs the queueing"):
        pytest.skip("needs a machine without the queueing discipline red")
    status, _, error = place.run("emulate", "short.toml", "--switch", "red")
    assert status == 2 and "red: this kernel has no qdisc red" in error and "--clock virtual" in error


def test_no_virtual_kernel(place: Place) -> None:
    nowhere = str(place.folder / "cache")
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, GRADWIRE_UML="", XDG_CACHE_HOME=nowhere, HOME=nowhere)
    assert status == 2 and error.endswith("there is no virtual-time kernel yet; expected make uml, once (a few minutes)")
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, GRADWIRE_UML=nowhere)
    assert status == 2 and f"GRADWIRE_UML={nowhere}: is no program" in error
    (place.folder / "no-kernel").write_text("#!/bin/sh\necho not a kernel\n")
    (place.folder / "no-kernel").chmod(0o755)
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, GRADWIRE_UML=str(place.folder / "no-kernel"))
    assert status == 1 and error.endswith("the kernel ended early: not a kernel")


@needs("root", "tool:setpriv")
def test_without_rights(place: Place) -> None:
    """Root in a container without the rights to namespaces; so is anybody where users may make none."""
    status, _, error = place.run("emulate", "short.toml", before=NO_RIGHTS)
    assert status == 2 and len(error) < 300
    assert "private namespaces cannot be made (unshare: " in error and "--clock virtual" in error
    status, said, error = place.run("probe", "short.toml", before=NO_RIGHTS)
    assert (status, error) == (1, "") and "private namespaces cannot be made" in " ".join(said.split())


@needs("root", "tool:setpriv", "uml")
def test_virtual_time_needs_no_rights(place: Place) -> None:
    status, said, _ = place.run("emulate", "short.toml", *VIRTUAL, "--json", before=NO_RIGHTS)
    assert status == 0 and json.loads(said)["engines"]["base"]["valid"]


def test_a_probe_with_nothing_on_the_path(place: Place) -> None:
    status, said, error = place.run("probe", "--json", PATH="/nonexistent")
    assert (status, error) == (0, "") and set(json.loads(said)) == {"kernel"}


TOOLS = """
import sys
import emu.namespaces
import gradwire
found, missing = emu.namespaces.find_tool, sys.argv.pop(1)
emu.namespaces.find_tool = lambda name: None if name == missing else found(name)
import emu.probe
emu.probe.find_tool = emu.namespaces.find_tool
gradwire.main()
"""


@needs("namespaces")
@pytest.mark.parametrize(("tool", "package"), [("ip", "iproute2"), ("unshare", "util-linux")])
def test_a_missing_tool_is_named_with_its_package(place: Place, tool: str, package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOOLS, tool, "emulate", "short.toml"], cwd=place.folder, env=place.environment,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"there is no command {tool}" in done.stderr and package in done.stderr.split("; expected ")[-1]


# full disks


FULL = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def full(size: str, folder: Path) -> list[str]:
    """Before a command: a small file system of memory, that only it sees, at a folder."""
    folder.mkdir(exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", FULL, "sh", size, str(folder)]


@needs("namespaces")
@pytest.mark.parametrize("size", ["4k", "16k"])
def test_no_room_for_temporary_files(place: Place, size: str) -> None:
    """For the plan, and for what the runner has seen."""
    status, _, error = place.run("emulate", "short.toml", *USERSPACE, before=full(size, place.temporary))
    assert status == 2
    assert error == (
        f"gradwire: {place.temporary}: cannot write temporary files: No space left on device; "
        "expected room there, or TMPDIR=FOLDER elsewhere"
    )


@needs("namespaces", "uml")
def test_no_room_for_temporary_files_in_virtual_time(place: Place) -> None:
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, before=full("16k", place.temporary))
    assert status == 2 and "cannot write temporary files: No space left on device" in error


@needs("namespaces", "uml")
def test_no_room_for_the_memory_of_a_virtual_machine(place: Place) -> None:
    small = [*full("10m", Path("/dev/shm")), *full("10m", place.temporary)]
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, before=small)
    assert status == 2 and "no room for the memory of a virtual machine, 1024 MB" in error


@needs("namespaces")
def test_no_room_for_the_result(place: Place) -> None:
    """What was measured is printed all the same."""
    small = full("12k", place.folder / "small")
    status, said, error = place.run("emulate", "short.toml", *USERSPACE, "--out", "small/x", before=small)
    assert status == 2 and error.startswith("gradwire: small/x: cannot be written: ") and "No space left" in error
    assert "flow completion" in said


@pytest.mark.parametrize(
    "backend", [pytest.param("bpf", marks=needs("bpf")), pytest.param("userspace", marks=needs("namespaces"))]
)
def test_no_room_for_captures(place: Place, backend: str) -> None:
    status, _, error = place.run("emulate", "short.toml", "--switch", backend, "--pcap", "new", before=full("60k", place.temporary))
    assert status == 2 and "cannot write temporary files: No space left on device" in error


def test_temporary_files_that_the_inside_would_not_see(place: Place) -> None:
    if not os.access("/run/lock", os.W_OK):
        pytest.skip("needs a folder below /run that can be written to")
    status, _, error = place.run("emulate", "short.toml", *USERSPACE, TMPDIR="/run/lock")
    assert status == 2 and ("TMPDIR=/run/lock: cannot be seen" in error or "private namespaces" in error)


# processes that die


@needs("namespaces")
@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("agent", "agent of h2: was killed by signal 9"),
        ("switch", "userspace switch: its process has ended"),
        ("runner", "testbed: the runner "),
    ],
)
def test_a_process_that_dies_is_named_soon(place: Place, victim: str, words: str) -> None:
    process = place.start("emulate", "long.toml", *USERSPACE)
    runner = place.when_running(process, 4)
    number = {"agent": children(runner)[-1], "switch": children(runner)[0], "runner": runner}[victim]
    began = time.monotonic()
    os.kill(number, signal.SIGKILL)
    status, _, error = place.end(process)
    assert status == 1 and words in error
    assert time.monotonic() - began < 20


# Ctrl-C, the limit, and kill -9


@needs("namespaces")
def test_an_interrupt_keeps_what_was_seen(place: Place) -> None:
    process = place.start("emulate", "long.toml", *USERSPACE, "--out", "kept")
    place.when_running(process)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    status, said, error = place.end(process)
    assert (status, error) == (130, "gradwire: interrupted") and "interrupted" in said
    assert time.monotonic() - began < 20
    result = check_partial(place.folder / "kept", "interrupt")
    assert sum(port["packets"] for port in result.ports.to_pylist()) > 0


@needs("uml")
def test_an_interrupt_in_virtual_time_keeps_what_was_seen(place: Place) -> None:
    process = place.start("emulate", "long.toml", *VIRTUAL, "--out", "kept")
    when_begun(process)
    os.killpg(process.pid, signal.SIGINT)
    status, _, error = place.end(process)
    assert (status, error) == (130, "gradwire: interrupted")
    check_partial(place.folder / "kept", "interrupt")


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


@needs("namespaces")
@pytest.mark.parametrize("delay", [0.9, 1.5, 2.1])
def test_an_interrupt_at_any_time(place: Place, delay: float) -> None:
    process = place.start("emulate", "long.toml", *USERSPACE)
    # Python's own imports come before anything of ours and say what they like; reading the scenario is ours
    maps, patience = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 60
    while "_pydantic_core" not in maps.read_text():
        assert time.monotonic() < patience and process.poll() is None
        time.sleep(0.01)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    status, _, error = place.end(process)
    assert (status, error) == (130, "gradwire: interrupted")


@needs("namespaces")
def test_the_limit_keeps_what_was_seen(place: Place) -> None:
    status, said, _ = place.run("emulate", "long.toml", *USERSPACE, "--max-wall", "6s", "--out", "kept")
    assert status == 1 and "time was up" in said
    check_partial(place.folder / "kept", "max_wall")


@needs("uml")
def test_the_limit_in_virtual_time(place: Place) -> None:
    status, said, error = place.run("emulate", "long.toml", *VIRTUAL, "--max-wall", "20s", "--out", "kept")
    assert status == 1 and "time was up" in said, error
    check_partial(place.folder / "kept", "max_wall")
    status, said, error = place.run("emulate", "long.toml", *VIRTUAL, "--max-wall", "300ms")
    assert (status, said) == (1, "") and "virtual time: not over after 0.3 s on the wall clock" in error


def killed(place: Place, wait: Callable[[subprocess.Popen[str]], Any], *arguments: str) -> None:
    mounts = Path("/proc/mounts").read_text()
    process = place.start("emulate", "long.toml", *arguments)
    wait(process)
    assert len(place.ours()) > 1
    process.kill()
    process.communicate(timeout=20)
    place.nothing_is_left()
    assert Path("/proc/mounts").read_text() == mounts


@needs("namespaces")
def test_nothing_is_left_when_it_is_killed(place: Place) -> None:
    killed(place, lambda process: place.when_running(process), *USERSPACE)


@needs("namespaces")
@pytest.mark.parametrize("backend", ["userspace", "bpf"])
def test_nothing_is_left_when_it_is_killed_while_it_builds(place: Place, backend: str) -> None:
    def wait(process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not any("emu.runner" in words for words in place.ours().values()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)

    killed(place, wait, "--switch", backend)


@needs("uml")
def test_nothing_is_left_when_it_is_killed_in_virtual_time(place: Place) -> None:
    def wait(process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not any("time-travel" in words for words in place.ours().values()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        time.sleep(3)

    killed(place, wait, *VIRTUAL)


# a hang, two at once, samples


@needs("uml")
def test_a_run_in_which_nothing_arrives_ends(place: Place) -> None:
    """A minute of virtual time."""
    lost = SHORT.replace('"100us" }', '"100us", loss = 0.9999 }').replace('"dlcp"', '"constant_rate"')
    (place.folder / "lost.toml").write_text(lost.replace("bound = 0.1\ndroppable = true\n", "").replace(", selective_drop = true", ""))
    status, _, error = place.run("emulate", "lost.toml", *VIRTUAL)
    assert status == 1 and error.startswith("gradwire: run: nothing has moved for 6")
    assert "waiting for message 0 from h1 to h0" in error


@needs("namespaces")
def test_two_at_once(place: Place) -> None:
    both = [place.start("emulate", "short.toml", "--json", *USERSPACE, "--out", f"out{i}") for i in range(2)]
    for process in both:
        said, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (0, 1) and "gradwire: " not in errors, errors  # 1: the machine was busy
        assert json.loads(said)["engines"]["base"]["kind"] == "emulation"
    place.nothing_is_left()
    assert all(Result.read(place.folder / f"out{i}").messages.num_rows == 4 for i in range(2))


def check_samples(result: Result, every_ms: int, late_ms: float, share: float) -> None:
    """Times near the multiples of the period, queues within the buffer, and counters that end at what was sent."""
    rows = [row for row in result.samples.to_pylist() if row["port"] == "s0->h0"]
    times = [row["time_ps"] / 1e9 for row in rows]
    assert {row["port"] for row in result.samples.to_pylist()} == {"s0->h0", "s0->h1", "s0->h2"}
    assert len(rows) >= share * result.summary["totals"]["simulated_ps"] / (every_ms * 1e9) - 2
    late = sorted(time % every_ms for time in times)
    assert late[len(late) * 9 // 10] <= late_ms
    assert 1458 < max(row["queue_bytes"] for row in rows) <= 16 << 10
    sent = [row["sent_bytes"] for row in rows]
    total = next(port["bytes"] for port in result.ports.to_pylist() if port["port"] == "s0->h0")
    assert sent == sorted(sent) and 0.8 * total < sent[-1] <= total
    assert {row["rate_bps"] for row in rows} == {10_000_000}


@needs("uml")
@pytest.mark.parametrize("backend", ["bpf", "userspace", "red"])
def test_samples_in_virtual_time(place: Place, backend: str) -> None:
    samples = ("--set", "output.queue_samples=5ms")
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, "--switch", backend, *samples, "--out", "kept")
    assert status == 0, error
    check_samples(Result.read(place.folder / "kept"), 5, 0.1, 1.0)


@needs("namespaces")
def test_samples_on_the_wall_clock(place: Place) -> None:
    samples = ("--set", "output.queue_samples=10ms", "--set", 'output.sample_ports=["s0"]')
    status, _, error = place.run("emulate", "short.toml", *USERSPACE, *samples, "--out", "kept")
    assert status in (0, 1), error
    check_samples(Result.read(place.folder / "kept"), 10, 9.0, 0.5)


@needs("uml")
def test_a_run_ends_at_its_duration(place: Place) -> None:
    """Not before, and what is under way is told."""
    status, _, error = place.run("emulate", "long.toml", *VIRTUAL, "--set", "duration=450ms", "--out", "kept")
    assert status == 0, error
    result = Result.read(place.folder / "kept")
    totals = result.summary["totals"]
    assert (totals["ended_by"], totals["simulated_ps"]) == ("duration", 450 * 10**9)
    starts = [row["start_ps"] / 1e9 for row in result.messages.to_pylist()]
    assert {round(start / 200) for start in starts} == {0, 1, 2} and max(starts) < 450
    assert max(row["end_ps"] for row in result.messages.to_pylist()) <= 451 * 10**9


@needs("root")
def test_real_machines_take_no_switch_clock_or_captures(place: Place) -> None:
    hosts = "".join(
        f'[[emulation.hosts]]\nname = "h{i}"\naddress = "192.0.2.{i + 1}"\ncommand = ["false"]\n' for i in range(3)
    )
    (place.folder / "machines.toml").write_text(SHORT + hosts)
    for option, where in ((USERSPACE, "--switch"), (VIRTUAL, "--clock"), (("--pcap", "new"), "--pcap")):
        status, _, error = place.run("emulate", "machines.toml", *option)
        assert status == 2 and error.startswith(f"gradwire: {where}: ") and error.endswith("expected without it")
    status, _, error = place.run("emulate", "machines.toml")
    assert status == 1 and "agent of h" in error and "ended with exit status 1" in error
