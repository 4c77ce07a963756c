"""How a run of `gradwire emulate` ends: a process that dies, Ctrl-C, the limit, kill -9, its duration, or nothing left to
wait for; and what two at once do to each other. The real command, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emu_cases import needs
from emu_commands import LIMIT_S, SHORT, USERSPACE, VIRTUAL, Place, check_partial, children, has_open, when_begun

from gradwire.emu.system.cpu_idle import DEVICE
from gradwire.result_store.result import Result


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# processes that die


@pytest.mark.beside
@needs("namespaces")
@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("agent", "agent of h2: was killed by signal 9"),
        ("switch", "userspace switch: its process ended"),
        ("runner", "testbed: the runner "),
    ],
)
def test_killed_process_is_named_within_20_seconds(place: Place, victim: str, words: str) -> None:
    process = place.start("emulate", "long.toml", *USERSPACE)
    runner = place.when_running(process, 4)
    number = {"agent": children(runner)[-1], "switch": children(runner)[0], "runner": runner}[victim]
    began = time.monotonic()
    os.kill(number, signal.SIGKILL)
    status, _, error = place.end(process)
    assert status == 1 and words in error
    assert time.monotonic() - began < 20


# Ctrl-C, the limit, and kill -9


ENDED = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
"""What a terminal and a batch system send, the exit status and the word for it."""


@pytest.mark.beside
@needs("namespaces")
@pytest.mark.parametrize(("sent", "code", "word"), ENDED)
def test_interrupt_keeps_partial_result(place: Place, sent: int, code: int, word: str) -> None:
    process = place.start("emulate", "long.toml", *USERSPACE, "--out", "kept")
    runner = place.when_running(process)
    assert has_open(runner, DEVICE) or not os.access(DEVICE, os.W_OK), "processors may halt"
    os.killpg(process.pid, sent)
    began = time.monotonic()
    status, said, error = place.end(process)
    assert (status, error) == (code, f"gradwire: {word}") and "interrupted" in said
    assert time.monotonic() - began < 20
    result = check_partial(place.folder / "kept", "interrupt")
    assert sum(port["packets"] for port in result.ports.to_pylist()) > 0


@pytest.mark.virtual
@needs("uml")
@pytest.mark.parametrize(("sent", "code", "word"), ENDED)
def test_interrupt_in_virtual_time_keeps_partial_result(place: Place, sent: int, code: int, word: str) -> None:
    process = place.start("emulate", "long.toml", *VIRTUAL, "--out", "kept")
    when_begun(process)
    assert not any(has_open(number, DEVICE) for number in place.ours()), "time stands still: nothing is gained"
    os.killpg(process.pid, sent)
    status, _, error = place.end(process)
    assert (status, error) == (code, f"gradwire: {word}")
    check_partial(place.folder / "kept", "interrupt")


@pytest.mark.beside
@needs("namespaces")
@pytest.mark.parametrize("delay", [0.9, 1.5, 2.1])
def test_interrupt_during_startup_ends_cleanly(place: Place, delay: float) -> None:
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


@pytest.mark.beside
@needs("namespaces")
def test_wall_limit_keeps_partial_result(place: Place) -> None:
    status, said, _ = place.run("emulate", "long.toml", *USERSPACE, "--max-wall", "12s", "--out", "kept")
    assert status == 1 and "time limit reached" in said
    check_partial(place.folder / "kept", "max_wall")


@pytest.mark.virtual
@needs("uml")
def test_wall_limit_in_virtual_time_keeps_partial_result(place: Place) -> None:
    status, said, error = place.run("emulate", "long.toml", *VIRTUAL, "--max-wall", "12s", "--out", "kept")
    assert status == 1 and "time limit reached" in said, error
    check_partial(place.folder / "kept", "max_wall")
    status, said, error = place.run("emulate", "long.toml", *VIRTUAL, "--max-wall", "300ms")
    assert (status, said) == (1, "") and "virtual time: wall-clock limit of 0.3 s exceeded" in error


def killed(place: Place, wait: Callable[[subprocess.Popen[str]], Any], *arguments: str) -> None:
    mounts = Path("/proc/mounts").read_text()
    process = place.start("emulate", "long.toml", *arguments)
    wait(process)
    assert len(place.ours()) > 1
    process.kill()
    process.communicate(timeout=20)
    place.nothing_is_left()
    assert Path("/proc/mounts").read_text() == mounts


@pytest.mark.beside
@needs("namespaces")
def test_killed_emulation_leaves_nothing_behind(place: Place) -> None:
    killed(place, lambda process: place.when_running(process), *USERSPACE)


@pytest.mark.beside
@needs("namespaces")
@pytest.mark.parametrize("backend", ["userspace", "bpf"])
def test_emulation_killed_during_setup_leaves_nothing_behind(place: Place, backend: str) -> None:
    def wait(process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not any("gradwire.emu.control.runner" in words for words in place.ours().values()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)

    killed(place, wait, "--switch", backend)


@pytest.mark.virtual
@needs("uml")
def test_virtual_emulation_killed_leaves_nothing_behind(place: Place) -> None:
    def wait(process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not any("time-travel" in words for words in place.ours().values()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        time.sleep(3)

    killed(place, wait, *VIRTUAL)


# a hang, two at once, samples


@pytest.mark.virtual
@needs("uml")
def test_emulation_without_progress_ends(place: Place) -> None:
    """The run ends after a minute of virtual time."""
    lost = SHORT.replace('"100us" }', '"100us", loss = 0.9999 }').replace('"dlcp"', '"constant_rate"')
    (place.folder / "lost.toml").write_text(
        lost.replace("bound = 0.1\ndroppable = true\n", "").replace(", selective_drop = true", "")
    )
    status, _, error = place.run("emulate", "lost.toml", *VIRTUAL)
    assert status == 1 and error.startswith("gradwire: run: no progress for 6")
    assert "waiting for message 0 from h1 to h0" in error


@pytest.mark.beside
@needs("namespaces")
def test_two_emulations_run_concurrently(place: Place) -> None:
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


@pytest.mark.virtual
@needs("uml")
@pytest.mark.parametrize("backend", ["bpf", "userspace", "red"])
def test_queue_samples_in_virtual_time(place: Place, backend: str) -> None:
    samples = ("--set", "output.queue_samples=5ms")
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, "--switch", backend, *samples, "--out", "kept")
    assert status == 0, error
    check_samples(Result.read(place.folder / "kept"), 5, 0.1, 1.0)


@needs("namespaces")
def test_queue_samples_on_the_wall_clock(place: Place) -> None:
    samples = ("--set", "output.queue_samples=10ms", "--set", 'output.sample_ports=["s0"]')
    status, _, error = place.run("emulate", "short.toml", *USERSPACE, *samples, "--out", "kept")
    assert status in (0, 1), error
    check_samples(Result.read(place.folder / "kept"), 10, 9.0, 0.5)


@pytest.mark.virtual
@needs("uml")
def test_emulation_ends_at_its_duration(place: Place) -> None:
    """It does not end earlier, and reports messages under way."""
    status, _, error = place.run("emulate", "long.toml", *VIRTUAL, "--set", "duration=450ms", "--out", "kept")
    assert status == 0, error
    result = Result.read(place.folder / "kept")
    totals = result.summary["totals"]
    assert (totals["ended_by"], totals["simulated_ps"]) == ("duration", 450 * 10**9)
    starts = [row["start_ps"] / 1e9 for row in result.messages.to_pylist()]
    assert {round(start / 200) for start in starts} == {0, 1, 2} and max(starts) < 450
    assert max(row["end_ps"] for row in result.messages.to_pylist()) <= 451 * 10**9


@pytest.mark.beside
@needs("root")
def test_real_machines_reject_switch_clock_and_pcap_options(place: Place) -> None:
    hosts = "".join(
        f'[[emulation.hosts]]\nname = "h{i}"\naddress = "192.0.2.{i + 1}"\ncommand = ["false"]\n' for i in range(3)
    )
    (place.folder / "machines.toml").write_text(SHORT + hosts)
    for option, where in ((USERSPACE, "--switch"), (VIRTUAL, "--clock"), (("--pcap", "new"), "--pcap")):
        status, _, error = place.run("emulate", "machines.toml", *option)
        assert (
            status == 2
            and error.startswith(f"gradwire: {where}: ")
            and error.endswith("expected a run without this option")
        )
    status, _, error = place.run("emulate", "machines.toml")
    assert status == 1 and "agent of h" in error and "ended with exit status 1" in error
