"""Processes of one's own on the packet engine: times by closed form, mistakes by name, and the example."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sim_cases import US, ps_job, scenario

from gradwire.scenarios.errors import GradwireError, StallError
from gradwire.sim.processes.user_process import Wires

ROOT = Path(__file__).resolve().parents[3]
FRAME, BYTE = 4096 + 66, 80  # bytes of a full packet of DCTCP, ps a byte at 100 Gbps


def wires(**fields):
    return Wires(scenario(ps_job(1), transport="dctcp", **fields))


def test_message_of_user_process_matches_closed_form_time():
    """Two packets take 2 us of software latency, three transmissions over two links, and 1 us per link."""
    made = wires()
    seen = []

    def ask():
        message = yield made.send("h0", "h1", 8192)
        seen.append((made.env.now, message.received_bytes))
        yield made.env.timeout(5)
        yield made.send("h1", "h0", "8192B")
        seen.append((made.env.now, 8192))

    assert made.run(ask())
    once = 2 * US + 3 * FRAME * BYTE + 2 * US
    assert seen == [(once, 8192), (2 * once + 5, 8192)]
    rows = made.messages.to_pylist()
    assert [(row["src"], row["dst"], row["start_ps"], row["end_ps"]) for row in rows] == [
        ("h0", "h1", 0, once), ("h1", "h0", once + 5, 2 * once + 5),
    ]  # fmt: skip


def test_run_of_user_process_stops_at_until():
    made = wires()

    def long():
        yield made.env.timeout(10 * US)

    assert not made.run(long(), until=5 * US)
    assert made.run(until=20 * US)


def test_send_names_unknown_hosts_and_kinds():
    made = wires()
    with pytest.raises(GradwireError, match="no host 'h9'; expected hosts are h0 to h7"):
        made.send("h0", "h9", 1)
    with pytest.raises(GradwireError, match=r"unknown kind of message .*; expected push"):
        made.send("h0", "h1", 1, kind="shove")


def test_user_process_waiting_forever_raises_stall_error():
    made = wires()

    def vain():
        yield made.env.event()

    with pytest.raises(StallError, match="no message is under way") as raised:
        made.run(vain())
    line = vain.__code__.co_firstlineno + 1
    assert f"process vain waits at {__file__}:{line}" in str(raised.value)


def test_own_process_example_runs():
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "own_process.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == ["round 0", "round 1", "round 2", "24 messages"]


@pytest.mark.parametrize("when", ["at once", "after no time", "after some time", "after a message"])
def test_exception_of_user_process_is_raised(when: str):
    """The exception is raised even if its process is the last to end."""
    wires = Wires("incast")

    def fails():
        if when == "after a message":
            yield wires.send("h0", "h1", "10kB")
        elif when != "at once":
            yield wires.env.timeout(0 if when == "after no time" else 5)
        raise RuntimeError(when)

    def fine():
        yield wires.env.timeout(1)

    with pytest.raises(RuntimeError, match=when):
        wires.run(fails(), fine())


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("priority", 8), ("priority", -1), ("priority", 1.0), ("bound", 1.5), ("bound", -1), ("bound", "x"),
        ("nbytes", 2.5), ("nbytes", True), ("nbytes", 0), ("nbytes", None), ("nbytes", "2 parsecs"), ("transport", 3),
        ("transport", -1), ("dst", "h0"), ("dst", "h99"), ("src", ["h0"]), ("nbytes", "0B"), ("nbytes", 10**15), ("job", 5),
    ],
)  # fmt: skip
def test_invalid_send_arguments_are_named(argument: str, value: object):
    wires = Wires("incast")
    given = {"src": "h0", "dst": "h1", "nbytes": 1000, argument: value}
    with pytest.raises(GradwireError, match=rf"send\({argument}\)"):
        wires.send(**given)

    def asks():
        yield wires.send(**given)

    with pytest.raises(GradwireError, match=rf"send\({argument}\)"):
        wires.run(asks())
    assert wires.messages.num_rows == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda wires: wires.run(3), "run(processes): is 3, of type int"),
        (lambda wires: wires.run(lambda: None), "run(processes): is <function"),
        (lambda wires: wires.run(until="1ms"), "run(until): is '1ms', of type str"),
        (lambda wires: wires.run(until=-1), "run(until): is -1"),
        (lambda _: Wires("incast", threads="2"), "Wires(threads): is '2', of type str"),
    ],
)
def test_invalid_run_arguments_are_named(given: Callable[[Wires], object], says: str):
    with pytest.raises(GradwireError) as raised:
        given(Wires("incast"))
    assert str(raised.value).startswith(says)
