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
def test_killed_agent_is_reported_and_leaves_no_processes(victim):
    found = inside("broken", how="killed", victim=victim)
    assert found["error"] == {
        "what": "was killed by signal 9 (out of memory?)", "where": f"agent of h{victim}", "expected": "", "usage": False,
    }  # fmt: skip
    assert found["took"] < 10 and found["left"] == [] and found["ended_by"] == "failure"
    assert any(f"h{victim}: no report" in problem for problem in found["problems"])
    message = 0 if victim == 2 else 1  # of the others it is known how far they came
    assert found["start_ns"][message] >= 0 and found["sent_packets"][message] > 0


def test_error_of_exited_agent_shows_last_stderr_line():
    found = inside("broken", how="exits")
    assert found["error"]["what"] == "ended with exit status 7; last line of its stderr: something odd happened"
    assert found["left"] == []


def test_error_of_failed_agent_names_agent_and_exception():
    found = inside("broken", how="raises")
    assert (found["error"]["what"], found["error"]["where"]) == ("ValueError: a mistake", "agent of h2")
    assert found["error"]["usage"] is False and found["left"] == []


@pytest.mark.beside
def test_run_without_progress_fails_with_pending_messages():
    found = inside("broken", how="nothing arrives")
    assert found["error"]["what"] == (
        "no progress for 5.6 s; waiting for message 0 from h0 to h1, message 1 from h2 to h1"
    )
    assert found["took"] > 5.6 and found["left"] == [] and found["end_ns"] == [-1, -1]


def test_gaps_of_computation_do_not_trigger_the_progress_timeout():
    """Between messages, hosts compute for twice the progress timeout."""
    found = inside("for_a_time", duration_ms=3700, gap_ms=1200, wait_s=0.6)
    assert (found["ended_by"], found["error"], found["left"]) == ("duration", None, [])
    done = [end for end in found["end_ns"] if end >= 0]
    assert len(done) == 4 and 3600e6 < max(done) < 3700e6
    assert found["start_ns"][-1] == -1
    assert found["told"][0] == ["begin", True, True], "beforehand"
    assert found["told"][-2:] == [["over", 0], [len(done), 20]], "before any report"


@pytest.mark.parametrize("transport", ["constant_rate", "cubic"])
def test_message_cut_by_the_duration_reports_received_bytes(transport):
    """The message needs eight seconds, and the run lasts one."""
    found = inside("cut", transport=transport, nbytes=10_000_000, duration_ms=1000)
    assert (found["ended_by"], found["end_ns"], found["lost"]) == ("duration", [-1], [0])
    assert 0 < found["received"][0] < 10_000_000


@pytest.mark.beside
def test_agent_that_does_not_open_its_sockets_is_reported():
    found = inside("broken", how="silent")
    assert found["error"]["what"] == "no answer within 1.5 s from h2, asked to open their sockets"
    assert found["left"] == []


@pytest.mark.beside
def test_unreachable_host_is_reported():
    found = inside("broken", how="unreachable")
    assert found["error"]["what"].startswith(("no answer within 1.5 s from h2", "cannot connect to 10.0.0."))
    assert found["left"] == []


def test_transport_unknown_to_the_agent_is_reported():
    """An agent may be older than its controller."""
    found = inside("broken", how="no such transport")
    assert "'carrier_pigeon' is not known; expected one of bbr, " in found["error"]["what"]
    assert found["left"] == []


def test_agents_started_by_command_deliver_all_messages():
    found = inside("commanded")
    assert (found["error"], found["wrong"], found["lost"], found["left"]) == (None, [], [0, 0], [])
    assert all(abs(offset) < 5_000_000 for offset in found["offsets"].values())
    assert all(0 < trip < 10**9 for trip in found["round_trips"].values())


def test_agents_with_different_clocks_start_together():
    """The clock of one agent is an hour ahead, and both agents start together."""
    found = inside("commanded", clock=True)
    if found["error"] and "clock" not in found["error"] and "unshare" in found["error"]:
        pytest.skip("no time namespaces here")
    assert (found["error"], found["wrong"], found["lost"]) == (None, [], [0, 0])
    assert abs(found["offsets"]["1"] - 3600 * 10**9) < 5_000_000
    assert 0 <= found["start_ns"][0] < 20e6 and 5e6 <= found["start_ns"][1] < 25e6
    assert all(0 < end < 200e6 for end in found["end_ns"])


@pytest.mark.parametrize("launcher", ["forked", "command"])
def test_killed_controller_leaves_no_processes(launcher):
    found = inside("abandoned", launcher=launcher)
    assert found["before"] >= 3 and found["left"] == []


def test_ctrl_c_preserves_partial_results():
    found = inside("interrupted")
    assert found["raised"] and found["left"] == [] and found["ended_by"] == "interrupt"
    assert found["end_ns"][0] > 0 and found["end_ns"][1] == -1 and found["sent_packets"][1] > 100


def test_base_round_trip_of_two_links_matches_hand_computation():
    """Two links of 10 us at 50 Mbit/s carry packets of 1082 bytes out and 60 back."""
    plan = plan_of([{"src": 0, "dst": 1, "nbytes": 10}], rate=50 * MBPS)
    assert base_round_trip_ns(plan) == 2 * (1082 + 60) * 8 * 20 + 4 * 10_000


def test_decoder_reassembles_frames_from_any_fragmentation():
    frames = [("a", 1), ("report", list(range(100_000))), ("c",)]
    data = b"".join(encode(frame) for frame in frames)
    for step in (1 << 20, 4097, 3):
        decoder, got = Decoder(), []
        for at in range(0, len(data), step):
            got += list(decoder.feed(data[at : at + step]))
        assert got == frames
