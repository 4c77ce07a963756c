"""Both ends of a DLCP message, driven by hand: data, answers and probes carried from one to the other."""

from __future__ import annotations

from transport_bench import US

from gradwire.jit.records.constants import BITMAP, PULL_PROBE
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.testing import FlowHarness

BASE = 10 * US  # base round trip
TIMEOUT = 200 * US
LONGEST = 240 * US  # 24 base round trips


def flow_of(packets, **settings):
    plain = {"stop_policy": "eager", "rate_control": "dctcp", "send_order": "sequential"}
    return FlowHarness(Dlcp, packets, base_rtt=BASE, **plain | settings)


def deliver(flow, sequences, ce=0):
    """Data packets reach the receiver. Returns the kinds of its answers, None where there is none."""
    replies = [flow.data(sequence, ce) for sequence in sequences]
    return [reply.kind if reply.count else None for reply in replies]


def answer(flow, number=None, parts=None, now=0):
    """The receiver answers a probe, and the parts of its Bitmap (all, or those given) reach the sender."""
    reply = flow.probe(flow.sender.probe_number if number is None else number)
    assert reply.kind == BITMAP
    for part in range(reply.count) if parts is None else parts:
        flow.control(BITMAP, part, reply.argument, now=now)
    return reply


def probed(flow, now=0):
    """Send everything, be quiet, probe. Returns the time of the probe."""
    flow.pull(now)
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + flow.sender.probe_number]
    return when
