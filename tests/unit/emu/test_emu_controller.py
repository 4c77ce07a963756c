"""Agents and their controller: what goes wrong is said in one line, waits are bounded, and nothing is left behind."""

from __future__ import annotations

import pytest
from emu_agents_cases import MBPS, inside, needs_namespaces, plan_of

from gradwire.emu.agent.frame_stream import Decoder, encode
from gradwire.emu.planning.base_rtt import base_round_trip_ns


@pytest.fixture
def _namespaces():
    needs_namespaces()


pytestmark = pytest.mark.usefixtures("_namespaces")


@pytest.mark.parametrize("victim", [0, 2])
def test_agent_that_is_killed(victim):
    found = inside("broken", how="killed", victim=victim)
    assert found["error"] == {
        "what": "was killed by signal 9 (out of memory?)", "where": f"agent of h{victim}", "expected": "", "usage": False,
    }  # fmt: skip
    assert found["took"] < 10 and found["left"] == [] and found["ended_by"] == "failure"
    assert any(f"h{victim}: no report" in problem for problem in found["problems"])
    message = 0 if victim == 2 else 1  # of the others it is known how far they came
    assert found["start_ns"][message] >= 0 and found["sent_packets"][message] > 0


def test_agent_that_exits_says_its_last_words():
    found = inside("broken", how="exits")
    assert found["error"]["what"] == "ended with exit status 7; last line of its stderr: something odd happened"
    assert found["left"] == []


def test_agent_that_fails_names_itself_and_the_mistake():
    found = inside("broken", how="raises")
    assert (found["error"]["what"], found["error"]["where"]) == ("ValueError: a mistake", "agent of h2")
    assert found["error"]["usage"] is False and found["left"] == []


@pytest.mark.beside
def test_nothing_moves():
    found = inside("broken", how="nothing arrives")
    assert found["error"]["what"] == (
        "no progress for 5.6 s; waiting for message 0 from h0 to h1, message 1 from h2 to h1"
    )
    assert found["took"] > 5.6 and found["left"] == [] and found["end_ns"] == [-1, -1]


def test_what_lies_ahead_is_waited_for():
    """Between messages nothing moves for twice the time that is waited, but somebody computes."""
    found = inside("for_a_time", duration_ms=3700, gap_ms=1200, wait_s=0.6)
    assert (found["ended_by"], found["error"], found["left"]) == ("duration", None, [])
    done = [end for end in found["end_ns"] if end >= 0]
    assert len(done) == 4 and 3600e6 < max(done) < 3700e6
    assert found["start_ns"][-1] == -1
    assert found["told"][0] == ["begin", True, True], "beforehand"
    assert found["told"][-2:] == [["over", 0], [len(done), 20]], "before any report"


@pytest.mark.parametrize("transport", ["constant_rate", "cubic"])
def test_what_had_arrived_of_a_message_that_the_duration_cuts(transport):
    """Of eight seconds' worth, one second's."""
    found = inside("cut", transport=transport, nbytes=10_000_000, duration_ms=1000)
    assert (found["ended_by"], found["end_ns"], found["lost"]) == ("duration", [-1], [0])
    assert 0 < found["received"][0] < 10_000_000


@pytest.mark.beside
def test_agent_that_does_not_get_ready():
    found = inside("broken", how="silent")
    assert found["error"]["what"] == "no answer within 1.5 s from h2, asked to open their sockets"
    assert found["left"] == []


@pytest.mark.beside
def test_host_that_cannot_be_reached():
    found = inside("broken", how="unreachable")
    assert found["error"]["what"].startswith(("no answer within 1.5 s from h2", "cannot connect to 10.0.0."))
    assert found["left"] == []


def test_transport_that_an_agent_does_not_know():
    """Such as one that is older than who controls it."""
    found = inside("broken", how="no such transport")
    assert "'carrier_pigeon' is not known; expected one of bbr, " in found["error"]["what"]
    assert found["left"] == []


def test_agents_by_command():
    found = inside("commanded")
    assert (found["error"], found["wrong"], found["lost"], found["left"]) == (None, [], [0, 0], [])
    assert all(abs(offset) < 5_000_000 for offset in found["offsets"].values())
    assert all(0 < trip < 10**9 for trip in found["round_trips"].values())


def test_clocks_that_differ():
    """One agent's clock is an hour ahead: both begin together all the same."""
    found = inside("commanded", clock=True)
    if found["error"] and "clock" not in found["error"] and "unshare" in found["error"]:
        pytest.skip("no time namespaces here")
    assert (found["error"], found["wrong"], found["lost"]) == (None, [], [0, 0])
    assert abs(found["offsets"]["1"] - 3600 * 10**9) < 5_000_000
    assert 0 <= found["start_ns"][0] < 20e6 and 5e6 <= found["start_ns"][1] < 25e6
    assert all(0 < end < 200e6 for end in found["end_ns"])


@pytest.mark.parametrize("launcher", ["forked", "command"])
def test_a_controller_that_is_killed_leaves_nothing(launcher):
    found = inside("abandoned", launcher=launcher)
    assert found["before"] >= 3 and found["left"] == []


def test_ctrl_c_keeps_what_is_there():
    found = inside("interrupted")
    assert found["raised"] and found["left"] == [] and found["ended_by"] == "interrupt"
    assert found["end_ns"][0] > 0 and found["end_ns"][1] == -1 and found["sent_packets"][1] > 100


def test_base_round_trip():
    """Two links of 10 us at 50 Mbit/s, packets of 1082 bytes out and 60 back."""
    plan = plan_of([{"src": 0, "dst": 1, "nbytes": 10}], rate=50 * MBPS)
    assert base_round_trip_ns(plan) == 2 * (1082 + 60) * 8 * 20 + 4 * 10_000


def test_frames_of_the_stream_however_they_are_cut():
    frames = [("a", 1), ("report", list(range(100_000))), ("c",)]
    data = b"".join(encode(frame) for frame in frames)
    for step in (1 << 20, 4097, 3):
        decoder, got = Decoder(), []
        for at in range(0, len(data), step):
            got += list(decoder.feed(data[at : at + step]))
        assert got == frames
