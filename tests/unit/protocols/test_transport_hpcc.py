"""HPCC against its rule, worked by hand.

100 Gbps, a round trip of 20 us, so that the line carries 250 000 bytes in one; packets of 4204 bytes on the wire. A
window grows by 125 bytes, (1 - 0.95) / 100 of that; less a little, since fractions have 20 bits."""

from __future__ import annotations

import pytest
from star_cases import star_tables
from transport_bench import US

from gradwire.jit.records.constants import ACK, NACK
from gradwire.jit.records.flows import Stamp, Stamps
from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.roce.hpcc import Hpcc
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.validation.scenario import remarks
from gradwire.scenarios.wire import HPCC_ACK_BYTES, HPCC_OVERHEAD
from gradwire.sim.preparation import check_variants
from gradwire.testing import FlowHarness, ReceiverReply, Word

T = 20 * US
BDP = 250_000
AI = BDP * 524 / (1 << 20)  # 0.0005 in 20 bits
SPEED = 80 << 16


class Told(FlowHarness):
    """A sender whose packets are answered one by one, with the stamps that the test says."""

    def __init__(self, packets=10_000, word=int, base_rtt=T, **settings):
        super().__init__(Hpcc, packets, base_rtt=base_rtt, word=word, **settings)
        self.cumulative = 0

    def stamp(self, slot, *stamps):
        """Switches have written into a slot: (port, queue, bytes, time), and the speed if it is another one."""
        written = Stamps(self.sender, self.sender.stamps + slot * Stamps.WORDS)
        written.hops = self.word(len(stamps))
        for hop, stamp in enumerate(stamps):
            for word, value in enumerate((*stamp, SPEED)[: Stamp.WORDS]):
                written.stamps[hop * Stamp.WORDS + word] = self.word(value)

    def answer(self, *stamps, advance=1):
        """The next packet goes and is answered. Returns the window, in bytes."""
        self.pull(0, most=1)
        slot = self.sender.piggyback
        self.stamp(slot, *stamps)
        self.cumulative += advance
        self.control(ACK, slot, self.cumulative)
        return self.window

    @property
    def window(self):
        return self.sender.window / 256

    @property
    def reference(self):
        return self.sender.reference_window / 256

    @property
    def load(self):
        return self.sender.load / ONE


def row(time, utilisation=1.0, queue=0, port=7):
    """A port of 100 Gbps at `time` us, of which it was busy a share."""
    return (port, queue, round(time * US * utilisation / 80), round(time * US))


def test_data_and_ack_headers_reserve_50_bytes_for_int_stamps():
    assert (HPCC_OVERHEAD, HPCC_ACK_BYTES) == (58 + 50, 62 + 50)
    assert (Hpcc.data_overhead, Hpcc.control_bytes) == (HPCC_OVERHEAD, HPCC_ACK_BYTES)


def test_initial_window_is_bandwidth_delay_product():
    flow = Told()
    assert (flow.window, flow.reference, flow.sender.gap) == (BDP, BDP, flow.sender.ps_per_byte)
    assert len(flow.pull()) == 60  # 59 are 248 036 bytes, less than the window
    flow = Told()
    flow.sender.window = 10 * 4204 << 8
    assert len(flow.pull()) == 10


def test_first_stamps_do_not_change_window():
    flow = Told()
    assert flow.answer(row(10, 0.1)) == BDP
    assert flow.load == 1


def test_fully_used_port_without_queue_lowers_window_to_eta():
    flow = Told()
    flow.answer(row(10))
    assert flow.answer(row(30)) == pytest.approx(0.95 * BDP + AI, abs=1)
    assert flow.load == 1
    assert flow.sender.gap == (T << 16) // (flow.sender.window >> 8)


def test_utilisation_uses_smaller_of_two_queue_lengths():
    """125 000 bytes are half of what the port sends in T: u = 1 + 0.5."""
    flow = Told()
    flow.answer(row(10, queue=125_000))
    assert flow.answer(row(30, queue=200_000)) == pytest.approx(BDP * 0.95 / 1.5 + AI, abs=1)
    assert flow.load == pytest.approx(1.5, abs=1e-5)


def test_short_stamp_interval_gets_proportional_weight_in_load_estimate():
    """u = 0.6 over 5 of 20 us: U = 1 - 0.4 / 4."""
    flow = Told()
    flow.answer((7, 0, 0, 10 * US))
    flow.answer((7, 0, 0.6 * 5 * US / 80, 15 * US))
    assert flow.load == pytest.approx(0.9, abs=1e-5)


def test_long_stamp_interval_counts_as_one_round_trip():
    flow = Told()
    flow.answer(row(10, 0.5))
    flow.answer(row(500, 0.5))
    assert flow.load == pytest.approx(0.5, abs=1e-5)


def test_busiest_port_sets_load_with_its_own_stamp_interval():
    """The second of three ports: 25 Gbps (320 ps a byte), full, 10 us between its stamps; the others half busy, 20 us."""
    flow = Told()
    slow = (2, 0, 0, 10 * US, 320 << 16)
    flow.answer((1, 0, 0, 10 * US), slow, (3, 0, 0, 11 * US))
    slow = (2, 31_250, 10 * US / 320, 20 * US, 320 << 16)
    flow.answer((1, 0, 125_000, 30 * US), slow, (3, 0, 125_000, 31 * US))
    assert flow.load == pytest.approx(1.0, abs=1e-5)  # the queues: min(0, 31 250) = 0
    slow = (2, 62_500, 20 * US / 320, 30 * US, 320 << 16)
    flow.answer((1, 0, 250_000, 50 * US), slow, (3, 0, 250_000, 51 * US))
    # 31 250 bytes are half a round trip of that port: u = 1.5, for half of T
    assert flow.load == pytest.approx(1 + 0.5 / 2, abs=1e-5)


def test_window_grows_by_five_steps_below_eta_and_then_by_load():
    """The port is always half busy. The first four answers of a round trip each raise the reference by a step; the
    estimate is below eta from the first on. After max_stage = 5 steps the window is set by the load: 0.95 / 0.5,
    within the limit."""
    flow = Told(max_stage=5)
    flow.sender.reference_window = BDP // 10 << 8
    flow.answer(row(10, 0.5))
    windows = []
    for n in range(1, 8):
        flow.pull(0, most=1)  # so that the next answer is beyond what was out there
        windows.append(flow.answer(row(10 + 20 * n, 0.5), advance=2))
    steps = [after - before for before, after in zip([BDP // 10, *windows], windows, strict=False)]
    assert steps[:5] == pytest.approx([AI] * 5, abs=1)
    assert windows[5] == pytest.approx(windows[4] * 0.95 / 0.5 + AI, rel=1e-4)
    assert steps[6] == pytest.approx(AI, abs=1)


def test_reference_window_updates_once_per_rtt_and_window_on_every_ack():
    """Acknowledgements of three packets sent before the reference update use the same reference. So reactions to one
    queue do not add up. The fourth packet was sent after the update."""
    flow = Told()
    flow.answer(row(10))
    flow.pull(0, most=3)
    flow.answer(row(30), advance=2)  # beyond the packets out there at the first stamps: follows
    reference = flow.reference
    assert reference == flow.window == pytest.approx(0.95 * BDP + AI, abs=1)
    out = flow.sender.nxt
    time = 30
    while flow.cumulative < out:
        time += 20
        assert flow.answer(row(time)) == pytest.approx(reference * 0.95 + AI, abs=1)
        assert flow.reference == reference
    flow.answer(row(time + 20))
    assert flow.reference == flow.window == pytest.approx(reference * 0.95 + AI, abs=1)


def test_reference_window_first_updates_one_rtt_after_first_stamps():
    flow = Told()
    flow.pull(0, most=3)
    flow.answer(row(10))
    assert flow.answer(row(30), advance=2) < BDP
    assert flow.reference == BDP
    flow.answer(row(50), advance=2)
    assert flow.reference < BDP


def test_window_stays_between_floor_and_bandwidth_delay_product():
    flow = Told(floor=50, max_stage=0)
    flow.answer(row(10, 0.01))
    assert flow.answer(row(30, 0.01)) == BDP
    flow = Told(floor=50)
    flow.answer(row(10, queue=10**9))
    assert flow.answer(row(30, queue=10**9)) == BDP / 50
    assert flow.sender.gap == 50 * flow.sender.ps_per_byte


def test_window_below_one_packet_allows_one_packet_in_flight():
    flow = Told(floor=1000)
    flow.answer(row(10, queue=10**9))
    assert flow.answer(row(30, queue=10**9)) == 250
    assert len(flow.pull()) == 1


def test_window_changes_only_when_consecutive_stamps_have_same_ports():
    flow = Told()
    flow.answer(row(10))
    assert flow.answer(row(30, queue=10**6, port=8)) == BDP
    assert flow.answer(row(50), row(51, port=9)) == BDP
    assert flow.answer(row(70), row(71, port=9)) == pytest.approx(0.95 * BDP + AI, abs=1)
    window = flow.window
    assert flow.answer(row(90, queue=10**6)) == window  # the first of the ports before, but no second


def test_reordered_older_stamps_are_ignored():
    flow = Told()
    flow.answer(row(10))
    flow.answer(row(30))
    window = flow.window
    assert flow.answer(row(29, queue=10**6)) == window
    flow.answer(row(50))
    assert flow.load == 1  # compared with those of 30


def test_nack_rewinds_sender_and_updates_window():
    flow = Told()
    flow.answer(row(10))
    flow.pull(0, most=10)
    slot = flow.sender.piggyback
    flow.stamp(slot, row(30, queue=BDP))
    flow.control(NACK, slot, 4)
    assert flow.sender.nxt == 4
    assert flow.load == 1
    assert flow.window == pytest.approx(0.95 * BDP + AI, abs=1)


def test_receiver_reply_piggybacks_stamp_slot():
    flow = Told(3)
    word = int(flow.run["on_data"](flow.memory, flow.k, flow.r, 1, 4096, 0, 0))
    assert word >> 30 & 1
    assert flow._reply(word & ~(1 << 30)) == ReceiverReply(NACK, 0, 0, 0, 1)
    assert flow.data(2).count == 0


# --- slots ------------------------------------------------------------------------------------------------------


def test_stamp_slot_count_is_power_of_two_covering_initial_window():
    flow = Told()
    assert flow.sender.stamp_mask == 63  # 60 packets, the first slot and the last
    assert flow.sender.stamp_mask & (flow.sender.stamp_mask + 1) == 0


def small(turns=6):
    """A sender with eight slots: six by turns."""
    flow = Told()
    flow.sender.stamp_mask = turns + 1
    return flow


def send(flow, count):
    """The slots of the next packets."""
    return [(flow.pull(0, most=1), flow.sender.piggyback)[1] for _ in range(count)]


def test_stamp_slots_rotate_and_last_slot_serves_as_fallback():
    flow = small()
    assert send(flow, 8) == [1, 2, 3, 4, 5, 6, 7, 7]
    flow.stamp(3, row(10))
    flow.control(ACK, 3, 3)  # the third packet is back, so the first two are not under way
    assert send(flow, 5) == [1, 2, 3, 7, 7]
    flow.control(ACK, 3, 3)  # the slot's newest packet: everything before it is gone
    assert (flow.sender.numbered, flow.sender.answered) == (9, 9)
    assert send(flow, 7) == [4, 5, 6, 1, 2, 3, 7]


def test_lost_packets_free_stamp_slots_at_next_nack():
    flow = small()
    send(flow, 6)
    flow.stamp(6, row(10))
    flow.control(NACK, 6, 0)
    assert send(flow, 6) == [1, 2, 3, 4, 5, 6]


def test_stamps_in_fallback_slot_are_ignored():
    flow = small()
    send(flow, 8)
    flow.stamp(7, row(10))
    flow.control(ACK, 7, 8)
    flow.stamp(7, row(30, queue=10**6))
    flow.control(ACK, 7, 9)
    assert (flow.window, flow.sender.answered) == (BDP, 0)


def test_sender_finishes_when_all_packets_are_acknowledged():
    flow = Told(3)
    flow.pull()
    for n in (1, 2, 3):
        flow.stamp(n, row(10 * n))
        flow.control(ACK, n, n)
    assert flow.sender.is_done == 1


@pytest.mark.parametrize(("side", "told"), [(6, False), (8, False), (10, True)])
def test_paths_longer_than_six_switches_are_rejected(side, told):
    """On two rings of n switches side by side a packet passes n / 2 + 2 of them at most."""
    tables = star_tables(transport="hpcc", switch={"pfc": True})
    tables["topology"] = {"kind": "torus", "dims": [side, 2]}
    if told:
        with pytest.raises(ScenarioError, match=r"space for 6 switches.*the longest path has 7"):
            build_scenario(tables)
    else:
        check_variants([build_scenario(tables)])


@pytest.mark.parametrize(("gpus", "fits"), [(1, True), (2, False)])
def test_switches_inside_hosts_count_towards_six_switch_limit(gpus, fits):
    """A path across a fat-tree has five switches, and one more in each host that has several accelerators."""
    tables = star_tables(transport="hpcc", switch={"pfc": True}, host={"gpus": gpus})
    tables["topology"] = {"kind": "fat_tree", "k": 4}
    made = build_scenario(tables)
    if fits:
        check_variants([made])
        return
    with pytest.raises(ScenarioError, match=r"space for 6 switches.*the longest path has 7"):
        check_variants([made])


@pytest.mark.parametrize("kind", ["dcqcn", "hpcc"])
def test_remarks_warn_about_missing_pfc_and_missing_ecn_threshold(kind):
    said = "; ".join(remarks(build_scenario(star_tables(transport=kind))))
    assert "switch.pfc is off" in said
    assert ("no packet will be marked" in said) == (kind == "dcqcn")
    quiet = {"pfc": True, "ecn_threshold": "64KiB"}
    assert remarks(build_scenario(star_tables(transport=kind, switch=quiet))) == []


def test_rto_above_max_rto_is_rejected():
    with pytest.raises(ScenarioError, match=r"rto.*is above max_rto"):
        build_scenario(star_tables(transport={"kind": "hpcc", "rto": "2s"}))


def test_hpcc_arithmetic_does_not_overflow_64_bits():
    """An idle port becomes full with a 10 GB queue over the longest interval. Cases include a line of 1 Mbps and a
    round trip of 9 s."""
    for rate, rtt in ((100 * 10**9, T), (10**6, T), (400 * 10**9, 9 * 10**12)):
        flow = Told(word=Word, base_rtt=rtt, rate=rate)
        speed = -(-(8_000_000_000_000 << 16) // rate)
        for time in (1, 2, (1 << 41) + 1, 1 << 43):
            flow.answer((7, 10**10, (time << 16) // speed, time, speed))
            flow.answer((7, 0, (time << 16) // speed, time + 1, speed))
            flow.pull(0, most=1)
        assert flow.window >= 1
