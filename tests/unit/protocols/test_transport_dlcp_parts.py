"""Messages of DLCP whose Bitmaps come in many parts, on a network that loses packets of every kind."""

from __future__ import annotations

from collections import Counter

import pytest
from transport_bench import GBPS, US, Flow, play

from gradwire.jit.records.constants import PROBE
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing import transport
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, Network, Override, star


def lossy(loss: float) -> Network:
    """Two hosts at a switch, 100 Gbps and 1 us; every link loses this share of its packets."""
    return star(2, LinkSpec(100 * GBPS, US), [Override((host, "s0"), loss=loss) for host in ("h0", "h1")])


@pytest.mark.parametrize("seed", [3, 4])
def test_engine_and_oracle_agree_on_every_packet(seed: int):
    """The Bitmap has three parts and each link loses 20 % of packets: some parts are requested alone."""
    table = transport("dlcp", payload="64B", probe_timeout="20us")
    case = Case(
        lossy(0.2), [table], [MessageSpec(0, 0, 1, 64 * 20_000)], Switch.model_validate({"buffer": "1MB"}), seed=seed
    )
    oracle = run_oracle(case)
    assert first_difference(run_engine(case), oracle) == ""
    asked = Counter(sent.packet.argument >> 12 for sent in oracle.transmissions if sent.packet.kind == PROBE)
    assert asked[0] and len(asked) > 1


@pytest.mark.parametrize("droppable", [0.0, 1.0])
def test_many_part_bitmap_message_completes_at_ten_percent_loss_per_link(droppable: float):
    """64 MB in packets of 128 bytes: at 19 % loss a third of all probes get no answer. All parts at once would never
    arrive; requested one by one, they cost a few timeouts."""
    table = transport("dlcp", payload="128B")
    ends = {
        loss: play(lossy(loss), [Flow(0, 1, 64_000_000, bound=0.1, droppable=droppable)], table, buffer=10_000_000)
        for loss in (0.0, 0.1)
    }
    assert ends[0.1].ends[0] < 3 * ends[0.0].ends[0]
    assert ends[0.1].lost[0] <= 6_400_000


def test_bitmap_parts_in_flight_on_slow_link_are_not_requested():
    """62 parts take 570 us at 1 Gbps, more than two time-outs."""
    network = star(2, LinkSpec(GBPS, US, 0.0005))
    outcome = play(network, [Flow(0, 1, 64_000_000)], transport("dlcp", payload="128B"), buffer=10_000_000, log=True)
    assert outcome.again[0] > 0 and outcome.probes < 10  # a few passes, and parts that the line has lost


@pytest.mark.parametrize("droppable", [0.0, 1.0])
def test_one_gigabyte_message_completes_at_ten_percent_loss_per_link(droppable: float):
    """30 Bitmap parts and 19 % retransmissions take less than three times the lossless time."""
    table = transport("dlcp")
    ends = {
        loss: play(lossy(loss), [Flow(0, 1, 10**9, bound=0.1, droppable=droppable)], table, buffer=10_000_000).ends[0]
        for loss in (0.0, 0.1)
    }
    assert ends[0.1] < 3 * ends[0.0]
