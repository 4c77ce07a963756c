"""Connections that carry message after message: hand-worked times, windows and recoveries; what they keep and forget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transport_bench import MS, US

from gradwire.jit.records.flows import Sender
from gradwire.protocols.transports.common.window import SHIFT, WindowFlow
from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.memory import records
from gradwire.sim.simulate import simulate
from gradwire.testing import FlowHarness, transport
from gradwire.testing.oracle import Case, MessageSpec, NetworkChange, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import ACK, DATA
from gradwire.topology import LinkSpec, leaf_spine, star
from gradwire.topology.routing import build_routing

FRAME = 1066  # 1000 bytes of payload
TX = FRAME * 80  # ps at 100 Gbps
KINDS = ("tcp_newreno", "dctcp", "cubic")


def play(
    letters: list[MessageSpec], kind: str = "tcp_newreno", connections: str = "persistent", *, cable: int = US,
    changes: Any = (), **more: Any,
) -> Outcome:  # fmt: skip
    """Two hosts, 100 Gbps. What the oracle says as well. One engine, of all that carry streams, plays each of them."""
    tables = [transport(each, connections="persistent") for each in KINDS]
    number = KINDS.index(kind)
    tables[number] = transport(kind, connections=connections, **{"payload": "1000B", "min_rto": "200us", **more})
    letters = [replace(letter, transport=number) for letter in letters]
    case = Case(star(2, LinkSpec(10**11, cable)), tables, letters, changes=changes)
    engine = run_engine(case)
    assert first_difference(engine, run_oracle(case)) == ""
    return engine


def ends(outcome: Outcome) -> list[int]:
    """When each message was delivered."""
    return [arrival.time for arrival in sorted(outcome.arrivals, key=lambda arrival: arrival.message)]


def alone(packets: int) -> int:
    """What so many packets take that the window does not hold up: transmission, and the last one's way."""
    return packets * TX + US + TX + US


def starts(outcome: Outcome, message: int) -> list[int]:
    """When the data packets of a message left their host."""
    return [
        t.start for t in outcome.transmissions if t.packet.flow == message and t.packet.kind == DATA and t.link == 0
    ]


# --- windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_warm_connection_sends_at_line_rate_from_first_packet(kind):
    letters = [MessageSpec(0, 0, 1, 300_000), MessageSpec(100 * US, 0, 1, 300_000)]
    fresh, warm = play(letters, kind, "fresh"), play(letters, kind)
    assert ends(fresh)[0] == ends(warm)[0] > alone(300)  # slow start
    assert ends(fresh)[1] == 100 * US + ends(fresh)[0]
    assert ends(warm)[1] == 100 * US + alone(300)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("silence", "window"), [(199, 207), (201, 103), (401, 51), (2_000, 10)])
def test_window_halves_per_timeout_of_idle_time(kind, silence, window):
    """After 300 packets the window is 207. It is 160 when the last packet leaves, and grows by one for each of the
    next 47 answers, until less than half of it is in flight (160 + 47 > 2 (150 - 47)). It halves for every time-out
    (200 us) that passes after the last packet was sent, down to the initial window. The test counts packets that
    leave before the first answer, 40 us later."""
    first = [MessageSpec(0, 0, 1, 300_000)]
    again = starts(play(first, kind, cable=10 * US), 0)[-1] + silence * US
    outcome = play([*first, MessageSpec(again, 0, 1, 2_000_000)], kind, cable=10 * US)
    assert sum(start < again + 40 * US for start in starts(outcome, 1)) == window


def _fabric(tables: list[Any], **more: Any) -> Fabric:
    network = star(2, LinkSpec(10**11, US))
    return Fabric(network, build_routing(network), switch=Switch(), transports=tables, **more)


def _rested(owner: Any, window: int, threshold: int, silence: int) -> FlowHarness:
    """A connection of a measured round trip of 10 us (time-out 2 ms) that has been silent for so many us."""
    flow = FlowHarness(owner, 100)
    flow.sender.stream = flow.f
    flow.sender.cwnd, flow.sender.ssthresh, flow.sender.srtt = window << SHIFT, threshold << SHIFT, 10 * US
    flow.sender.last_sent_at = 7 * US
    flow.run["resume"](flow.memory, flow.k, flow.f, (7 + silence) * US)
    return flow


@pytest.mark.parametrize(
    ("window", "threshold", "silence", "after", "threshold_after"),
    [
        (100, 50, 2_000, 100, 50),  # no longer than a time-out: as it was
        (100, 50, 2_001, 50, 75),
        (100, 90, 4_000, 50, 90),  # the threshold never falls
        (100, 50, 4_001, 25, 75),
        (100, 50, 50_000, 10, 75),  # no lower than what a connection begins with
        (6, 50, 50_000, 6, 50),  # and one below that is left alone
    ],
)  # fmt: skip
def test_resume_reduces_window_after_idle_time(window, threshold, silence, after, threshold_after):
    flow = _rested(TcpNewReno, window, threshold, silence)
    assert (flow.sender.cwnd / 2**SHIFT, flow.sender.ssthresh >> SHIFT) == (after, threshold_after)


def test_cubic_epoch_shifts_by_idle_time():
    flow = FlowHarness(Cubic, 100)
    flow.sender.epoch, flow.sender.last_ack_at, flow.sender.last_sent_at = 100 * US, 150 * US, 145 * US
    flow.run["resume"](flow.memory, flow.k, flow.f, 400 * US)
    assert (flow.sender.epoch, flow.sender.last_ack_at) == (350 * US, 400 * US)


# --- one sequence of packets ----------------------------------------------------------------------------------------


def test_message_queues_behind_previous_message_of_connection():
    """Its packets follow without a gap. It is delivered when they arrive, independent of acknowledgements of the
    message before."""
    letters = [MessageSpec(0, 0, 1, 300_000), MessageSpec(200 * US, 0, 1, 50_000), MessageSpec(201 * US, 0, 1, 20_000)]
    outcome = play(letters, min_rto="1ms")
    assert ends(outcome)[1:] == [200 * US + alone(50), 200 * US + alone(70)]
    both = starts(outcome, 1) + starts(outcome, 2)
    assert set(np.diff(both).tolist()) == {TX}


def test_persistent_connection_delivers_messages_in_order():
    """A short message does not overtake a long one, although fresh connections share the link in turn."""
    letters = [MessageSpec(0, 0, 1, 500_000), MessageSpec(1, 0, 1, 1_000)]
    fresh, stream = ends(play(letters, connections="fresh")), ends(play(letters))
    assert fresh[1] < fresh[0] and stream[0] < stream[1]
    assert stream[1] - stream[0] == TX


@pytest.mark.parametrize("kind", KINDS)
def test_next_message_detects_tail_loss_of_previous_message(kind):
    """The last packet of the first message is lost. Three packets of the second one reveal it, so no time-out is
    needed."""
    first, gone = 20, 19 * TX  # when the last packet of the first one leaves
    warm = [MessageSpec(0, 0, 1, 300_000)]
    at_ps = 150 * US
    letters = [*warm, MessageSpec(at_ps, 0, 1, first * 1000), MessageSpec(at_ps, 0, 1, 20_000)]
    cut = [NetworkChange(at_ps + gone - 1, "cut", 0), NetworkChange(at_ps + gone + TX - 1, "mend", 0)]
    outcome = play(letters, kind, changes=cut, min_rto="1ms")
    assert outcome.again == [0, 1, 1]  # and the very last one, to be on the safe side
    # three answers back: 23 packets, their way, an answer's way, then the packet once more
    heard = at_ps + alone(first + 3) + 2 * (66 * 80 + US)
    begun = starts(outcome, 1)[-1]
    assert heard <= begun < heard + TX
    assert ends(outcome)[1] == ends(outcome)[2] == begun + alone(1)
    alone_again = play([*warm, letters[1]], kind, changes=cut, min_rto="1ms")
    assert ends(alone_again)[1] > at_ps + MS  # nobody says so: the timer


def test_round_trip_estimate_persists_across_messages():
    """Only the first packet is timed; later messages use its round trip."""
    fabric = _fabric([transport("tcp_newreno", payload="1000B", connections="persistent")])
    for n in range(5):
        fabric.send(n * 100 * US, 0, 1, 1000)
    while fabric.undelivered or not fabric.idle:
        fabric.run(fabric.now + MS)
    ((sender, _),) = fabric.flows._streams._known.values()
    trip = 2 * (TX + US) + 2 * (66 * 80 + US)
    assert int(WindowFlow(fabric.memory.state, sender).srtt) == trip
    fabric.close()


# --- which messages share one ---------------------------------------------------------------------------------------


def _entropies(letters: list[MessageSpec], connections: str) -> list[set[int]]:
    tables = [transport(kind, connections=connections) for kind in KINDS]
    case = Case(leaf_spine(2, 2, 2, LinkSpec(10**11, US)), tables, letters)
    engine = run_engine(case)
    assert first_difference(engine, run_oracle(case)) == ""
    found: list[set[int]] = [set() for _ in letters]
    for sent in engine.transmissions:
        found[sent.packet.flow].add(sent.packet.entropy)
    return found


def test_connections_are_per_transport_host_pair_and_priority():
    """The path entropy shows the sharing: a connection has one, and its messages share it."""
    letters = [
        MessageSpec(0, 0, 2, 5000), MessageSpec(0, 0, 2, 5000), MessageSpec(9 * US, 0, 2, 5000), MessageSpec(0, 0, 3, 5000),
        MessageSpec(0, 2, 0, 5000), MessageSpec(0, 0, 2, 5000, priority=1), MessageSpec(0, 0, 2, 5000, transport=1),
    ]  # fmt: skip
    shared = _entropies(letters, "persistent")
    assert all(len(each) == 1 for each in shared)
    assert shared[0] == shared[1] == shared[2]
    assert len(set.union(*shared[2:])) == 5
    assert len(set.union(*_entropies(letters, "fresh"))) == 7


# --- for ever -------------------------------------------------------------------------------------------------------


def test_sequence_numbers_wrap_around_22_bits(monkeypatch):
    """Cumulative acknowledgements have 22 bits."""
    letters = [MessageSpec(n * 20 * US, 0, 1, 40_000 + n) for n in range(20)]
    plain = play(letters)
    monkeypatch.setattr(records, "FIRST_PACKET", (1 << 22) - 130)
    around = play(letters)
    points = [t.packet.argument for t in around.transmissions if t.packet.kind == ACK]
    assert min(points) == 0 and max(points) == (1 << 22) - 1
    assert ends(around) == ends(plain)


def test_persistent_connection_reuses_records_and_bitmaps():
    """Ten thousand messages run one after the other."""
    fabric = _fabric([transport("dctcp", payload="1000B", connections="persistent")])
    most = 0
    for n in range(200):
        for _ in range(50):
            fabric.send(fabric.now, 0, 1, 7_000)
        while fabric.undelivered:
            fabric.run(fabric.now + MS)
        if n == 20:
            most = fabric.flows.arena.used
    ((sender, _),) = fabric.flows._streams._known.values()
    state = fabric.memory.state
    assert Sender(state, sender).next_number == 70_000 and Sender(state, sender).first_packet > 60_000
    assert fabric.flows.arena.used == most and fabric.flows.records.used < 400
    tables = fabric.finish()
    assert set(tables.sent_packets.tolist()) == {7} and set(tables.received_bytes.tolist()) == {7_000}
    fabric.close()


# --- in scenarios ---------------------------------------------------------------------------------------------------

RING = {
    "name": "ring", "topology": {"kind": "star", "hosts": 4}, "link": {"rate": "1Gbps", "latency": "100us"},
    "host": {"software_latency": "200us"}, "switch": {"buffer": "256KiB"},
    "job": [{
        "name": "r", "trace": "resnet20", "workers": 4, "servers": 0, "iterations": 2, "compute_scale": 0.01,
        "exchange": {"kind": "ring", "bucket": "25MiB"},
    }],
}  # fmt: skip


def test_persistent_connections_avoid_slow_start_in_rings():
    """Each step of a ring sends 193 packets to the same neighbour, and shares the link with 66-byte acknowledgements.
    An open window needs no more time; a fresh window of 10 packets waits for answers first, where 35 fill the path:
    25 and then 15 packet times."""

    def steps(connections: str) -> Any:
        transport = {"kind": "cubic", "payload": "1400B", "connections": connections}
        result = simulate(build_scenario(RING | {"transport": transport}))
        rows = [row for row in result.messages.to_pylist() if row["iteration"] == 1]
        return np.array([row["end_ps"] - row["start_ps"] - 200 * US for row in rows]), rows

    (fresh, rows), (warm, _) = steps("fresh"), steps("persistent")
    packets = np.array([-(-row["bytes"] // 1400) for row in rows])
    assert set(packets.tolist()) == {193}
    line, ways = packets * 1466 * 8000, 1466 * 8000 + 200 * US
    assert (warm >= line + ways).all() and (warm <= (line + ways) * (1 + 66 / 1466)).all()
    assert (fresh > warm + 30 * 1466 * 8000).all()


@pytest.mark.parametrize("kind", ["pias", "dlcp", "swift", "timely", "ndp", "constant_rate"])
def test_transports_without_connections_reject_persistent_setting(kind):
    with pytest.raises(ScenarioError, match=r"transport\.connections"):
        build_scenario({
            "name": "x", "topology": {"kind": "star", "hosts": 3}, "transport": {"kind": kind, "connections": "persistent"},
            "traffic": [{"kind": "all_to_all", "name": "a", "size": "1kB"}],
        })  # fmt: skip


def test_former_emulation_connections_key_is_rejected_with_a_hint():
    with pytest.raises(ScenarioError, match=r'emulation.connections.*transport = .*connections = "persistent"'):
        build_scenario({
            "name": "x", "topology": {"kind": "star", "hosts": 3}, "emulation": {"connections": "persistent"},
            "traffic": [{"kind": "all_to_all", "name": "a", "size": "1kB"}],
        })  # fmt: skip


def test_user_subclass_must_declare_persistent_connections(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from gradwire.protocols.transports.tcp.dctcp import Dctcp\nclass Mine(Dctcp):\n    pass\n"
    )
    tables = {
        "name": "x", "topology": {"kind": "star", "hosts": 3},
        "transport": {"kind": "mine:Mine", "connections": "persistent"},
        "traffic": [{"kind": "all_to_all", "name": "a", "size": "1kB"}],
    }  # fmt: skip
    from gradwire.sim.preparation import check_variants

    scenario = build_scenario(tables).at(tmp_path)
    with pytest.raises(ScenarioError, match="mine:Mine has no persistent connections"):
        check_variants(scenario.variants())
    (tmp_path / "mine.py").write_text(
        "from gradwire.protocols.transports.tcp.dctcp import Dctcp\nclass Mine(Dctcp):\n    streams = True\n"
    )
    check_variants(scenario.variants())
