"""Parts of a buffer for each class: the engine against the oracle, a case worked by hand, and what it is good for."""

from __future__ import annotations

from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, US, networks

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, star

FRAME = 1066
BALANCING = "spray_random"  # as the trainings of other tests, which have these engines, too


def dctcp(**more: Any) -> Dctcp:
    return Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "min_rto": "200us", "max_rto": "20ms", **more})


@pytest.mark.parametrize("shared", [False, True])
def test_engine_and_oracle_drop_the_same_packets_with_buffer_shares(shared):
    @budget(0.7)
    @given(data=st.data())
    def agree(data):
        draw = data.draw
        network = draw(networks(lossy=draw(st.booleans())))
        hosts, queues = network.host_count, draw(st.sampled_from((1, 3)))
        letters = []
        for _ in range(draw(st.integers(2, 12))):
            src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
            letters.append(MessageSpec(draw(st.sampled_from((0, 0, US))), src, dst, draw(st.integers(1, 60_000)),
                                  priority=draw(st.integers(0, 2)), important=draw(st.sampled_from((True, False)))))  # fmt: skip
        shares = st.sampled_from((0.125, 0.34, 0.5, 0.9, 1.0))
        room = f"{draw(st.sampled_from((5_000, 3 * FRAME, 20_000, 100_000)))}B"
        table = Switch.model_validate({
            "queues": queues, "shared_buffer" if shared else "buffer": room,
            "buffer_share": draw(st.one_of(shares, st.lists(shares, min_size=queues, max_size=queues))),
            "ecn_threshold": draw(st.sampled_from((None, "3KB"))), "selective_drop": draw(st.booleans()),
        })  # fmt: skip
        case = Case(
            network, [dctcp(initial_window=50)], letters, table, BALANCING, draw(st.integers(0, 2**40)), LATENCY
        )
        assert first_difference(run_engine(case), run_oracle(case)) == ""

    agree()


def tail_drops(table: dict[str, Any], letters: list[MessageSpec], hosts: int = 4) -> list[tuple[int, int]]:
    """(class, sequence) of what does not fit on its way to host 0, in order, until anything is sent again."""
    network = star(hosts, LinkSpec(10**10, US))
    case = Case(network, [dctcp(initial_window=50)], letters, Switch.model_validate(table), BALANCING)
    engine = run_engine(case, until=100 * US)
    assert first_difference(engine, run_oracle(case, until=100 * US)) == ""
    assert {drop.cause for drop in engine.drops} <= {"tail"}
    return [(drop.packet.priority, drop.packet.sequence) for drop in engine.drops]


def test_class_cannot_exceed_its_buffer_share():
    """Two synchronous senders send 8 packets of class 1 each to host 0. The first packet leaves at once; of those
    that follow, two arrive for each that leaves. A class that may hold half of 8 frames holds four: then every second
    packet is dropped, though the port's buffer has space."""
    letters = [MessageSpec(0, 1, 0, 8000, priority=1), MessageSpec(0, 2, 0, 8000, priority=1)]
    table = {"queues": 2, "buffer": f"{8 * FRAME}B"}
    assert tail_drops(table, letters) == []
    # two packets per time; waiting after each pair: 1, 2, 3, 4 and then 3 (one left) + 2, one too many: 8 pairs, 4 drops
    dropped = tail_drops({**table, "buffer_share": [1.0, 0.5]}, letters)
    assert len(dropped) == 4 and {c for c, _ in dropped} == {1}
    assert [sequence for _, sequence in dropped] == [4, 5, 6, 7]
    # the same part of the other class holds nothing back
    assert tail_drops({**table, "buffer_share": [0.5, 1.0]}, letters) == []


def test_share_of_shared_buffer_counts_over_all_ports():
    """Two ports congested by one class together hold that class's share of the switch's buffer. The other class, at
    one of the ports, finds space that it would not find without the limit."""
    network = star(10, LinkSpec(10**10, US))
    crowd = [MessageSpec(0, 2 + n, n % 2, 60_000, priority=1) for n in range(6)]
    high = [MessageSpec(30 * US, 8, 0, 10_000), MessageSpec(30 * US, 9, 0, 10_000)]
    lost = {}
    for share in (1.0, [1.0, 0.5]):
        table = Switch.model_validate(
            {"queues": 2, "shared_buffer": "60KB", "buffer_alpha": 1000.0, "buffer_share": share}
        )
        case = Case(network, [dctcp(initial_window=60)], [*crowd, *high], table, BALANCING)
        outcome = run_engine(case, until=60 * US)
        assert first_difference(outcome, run_oracle(case, until=60 * US)) == ""
        lost[str(share)] = sum(drop.packet.priority == 0 for drop in outcome.drops)
        peak = sum(port.peak for port in outcome.ports if port.tail)
        assert share == 1.0 or peak <= 30_000 + 2 * 10 * FRAME
    assert lost["1.0"] > 0 == lost["[1.0, 0.5]"]


def test_buffer_shares_protect_high_classes_from_low_ones():
    """Important packets above their threshold are marked, not dropped: six classes of them fill 512 KiB together. A
    burst of a higher class is then dropped for lack of space, but not with shares that reserve some."""
    gbps, hosts = 100 * 10**9, 60
    network = star(hosts, LinkSpec(gbps, US))
    dlcp = Dlcp.model_validate({"kind": "dlcp", "payload": "4096B"})
    low = [MessageSpec(0, 1 + n, 0, 400_000, priority=2 + n % 6) for n in range(42)]
    high = [MessageSpec(20 * US, 45 + n, 0, 20_000, priority=1) for n in range(5)]
    table = {"queues": 8, "buffer": "512KiB", "ecn_threshold": "64KiB", "selective_drop": True}
    lost, ends = {}, {}
    for name, more in (("whole", {}), ("parts", {"buffer_share": [1.0, 1.0] + [0.135] * 6})):
        case = Case(network, [dlcp], [*low, *high], Switch.model_validate({**table, **more}), BALANCING)
        outcome = run_engine(case)
        lost[name] = sum(drop.packet.priority == 1 and drop.cause == "tail" for drop in outcome.drops)
        ends[name] = max(each.time for each in outcome.arrivals if each.message >= len(low))
    assert lost["whole"] > 10 and lost["parts"] == 0
    assert ends["parts"] < 0.9 * ends["whole"], ends
