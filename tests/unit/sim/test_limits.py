"""What ends a run from outside, and what is a stall: limits are heard at any time, and patience follows the scenario."""

from __future__ import annotations

import re
import time

import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import Stalled, simulate
from gradwire.sim.stall_timeout import MIN_STALL_TIMEOUT, stall_timeout_ps
from gradwire.topology import build_network
from gradwire.topology.routing import build_routing


def tables(**fields):
    return {
        "name": "x", "topology": {"kind": "star", "hosts": 4},
        "traffic": [{"name": "t", "kind": "permutation", "size": "20kB"}], **fields,
    }  # fmt: skip


def scenario(**fields):
    return build_scenario(tables(**fields))


BUSY = {"traffic": [{"name": "t", "kind": "permutation", "size": "10GB"}]}


@pytest.mark.parametrize("output", [{}, {"queue_samples": "1ns"}])
def test_wall_limit_ends_run_with_frequent_queue_samples(output):
    """Samples every nanosecond make every call of the engine short; the wall-clock limit is still checked."""
    made = scenario(**BUSY, output=output)
    simulate(scenario())  # compiled
    begin = time.monotonic()
    result = simulate(made, max_wall_s=0.5)
    assert result.summary["totals"]["ended_by"] == "max_wall" and not result.summary["totals"]["finished"]
    assert time.monotonic() - begin < 20  # without being asked it goes on for hours


def test_progress_is_reported_between_queue_samples():
    told = []
    simulate(scenario(**BUSY, output={"queue_samples": "1ns"}), max_wall_s=1.0, progress=told.append)
    assert len(told) > 3 and told[-2].now_ps > told[0].now_ps


def test_sample_period_shorter_than_any_packet_is_rejected():
    with pytest.raises(ScenarioError, match="is shorter than any packet"):
        scenario(output={"queue_samples": "1ps"})


CUT = [{"kind": "link_down", "between": ["h0", "s0"], "at": "1us"}]


def test_stall_keeps_partial_result():
    with pytest.raises(Stalled, match="can make no progress") as caught:
        simulate(scenario(fault=CUT))
    totals = caught.value.result.summary["totals"]
    assert totals["ended_by"] == "stall" and not totals["finished"] and totals["messages_under_way"] > 0
    assert caught.value.result.messages.num_rows == 4 and caught.value.result.ports.num_rows


def test_stall_error_describes_undelivered_messages():
    """The cable of h0 is cut at 1 us; of its 5 packets, those that arrived before are acknowledged once. The error
    suggests the packet log if it is off, and quotes it if it is on."""
    with pytest.raises(Stalled) as caught:
        simulate(scenario(fault=CUT))
    text = str(caught.value)
    from_h0 = next(
        line for line in text.splitlines() if re.search(r"message \d+ of t .*, h0 -> h\d, 20000 bytes", line)
    )
    assert "in 5 packets, 5 of them important, may lose 0 bytes, over dctcp: " in from_h0
    arrived, sent, answered, lost = map(int, re.findall(r"(\d+) (?:bytes have|packets sent|answered|lost)", from_h0))
    assert arrived == 4096 * answered < 20000 and sent > 5 and lost == sent  # packets, or the answers to them
    assert ", 0 on their way; sender is not listed at the NIC, " in from_h0
    assert re.search(r"its timer at [\d.]+s; receiver's timer none$", from_h0)  # retransmissions go on, in vain
    assert text.endswith("log their packets with --set output.packet_log=true")
    with pytest.raises(Stalled) as caught:
        simulate(scenario(fault=CUT, output={"packet_log": True}))
    assert re.search(r"message \d+: data 0 at [\d.]+m?s over h0->s0(, lost)?$", str(caught.value), re.M)
    assert "--set" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"link": {"rate": "2kbps"}, "host": {"software_latency": "1s"}},
        {"link": {"loss": 0.5}},
        {"link": {"rate": "2kbps", "loss": 0.3}, "host": {"software_latency": "1s"}, "transport": "dlcp"},
    ],
)
def test_slow_and_lossy_runs_are_not_stalls(fields):
    """At 2 kbit/s a packet takes 17 s. With half of all packets lost, a sender gets an answer to one packet in
    sixteen."""
    assert simulate(scenario(**fields)).summary["totals"]["finished"]


def patience(**fields):
    made = scenario(**fields)
    network = build_network(made.topology, made.link)
    return stall_timeout_ps(made, network, build_routing(network))


def test_stall_timeout_depends_on_slowest_link_loss_and_max_rto():
    fast = patience()
    assert (
        MIN_STALL_TIMEOUT + 10**12 <= fast < 1.2 * MIN_STALL_TIMEOUT
    )  # a time-out of 1 s, and next to nothing for the links
    frame = (4096 + 66) * 8 * 10**12 // 2000
    assert patience(link={"rate": "2kbps"}, host={"software_latency": "1s"}) >= MIN_STALL_TIMEOUT + 10 * frame
    assert patience(transport={"kind": "dctcp", "max_rto": "60s"}) >= MIN_STALL_TIMEOUT + 60 * 10**12
    # there and back over two links each: one try in 16 succeeds, so 1e-6 is 215 failures in a row
    assert patience(link={"loss": 0.5}) >= MIN_STALL_TIMEOUT + 210 * 10**12
    assert patience(fault=[{"kind": "gray_loss", "between": ["h0", "s0"], "at": "1us", "loss": 0.5}]) == patience(
        link={"loss": 0.5}
    )
