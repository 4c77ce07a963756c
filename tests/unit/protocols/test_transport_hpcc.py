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


def test_headers_have_room_for_the_stamps():
    assert (HPCC_OVERHEAD, HPCC_ACK_BYTES) == (58 + 50, 62 + 50)
    assert (Hpcc.data_overhead, Hpcc.control_bytes) == (HPCC_OVERHEAD, HPCC_ACK_BYTES)


def test_starts_with_what_the_line_carries_in_a_round_trip():
    flow = Told()
    assert (flow.window, flow.reference, flow.sender.gap) == (BDP, BDP, flow.sender.ps_per_byte)
    assert len(flow.pull()) == 60  # 59 are 248 036 bytes, less than the window
    flow = Told()
    flow.sender.window = 10 * 4204 << 8
    assert len(flow.pull()) == 10


def test_the_first_stamps_are_only_kept():
    flow = Told()
    assert flow.answer(row(10, 0.1)) == BDP
    assert flow.load == 1


def test_a_full_port_without_a_queue_lowers_to_eta():
    flow = Told()
    flow.answer(row(10))
    assert flow.answer(row(30)) == pytest.approx(0.95 * BDP + AI, abs=1)
    assert flow.load == 1
    assert flow.sender.gap == (T << 16) // (flow.sender.window >> 8)


def test_the_smaller_of_two_queues_counts_in_round_trips_of_the_port():
    """125 000 bytes are half of what the port sends in T: u = 1 + 0.5."""
    flow = Told()
    flow.answer(row(10, queue=125_000))
    assert flow.answer(row(30, queue=200_000)) == pytest.approx(BDP * 0.95 / 1.5 + AI, abs=1)
    assert flow.load == pytest.approx(1.5, abs=1e-5)


def test_a_short_time_between_stamps_moves_the_estimate_little():
    """u = 0.6 over 5 of 20 us: U = 1 - 0.4 / 4."""
    flow = Told()
    flow.answer((7, 0, 0, 10 * US))
    flow.answer((7, 0, 0.6 * 5 * US / 80, 15 * US))
    assert flow.load == pytest.approx(0.9, abs=1e-5)


def test_a_long_time_between_stamps_counts_as_one_round_trip():
    flow = Told()
    flow.answer(row(10, 0.5))
    flow.answer(row(500, 0.5))
    assert flow.load == pytest.approx(0.5, abs=1e-5)


def test_the_busiest_port_decides_with_its_own_time():
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


def test_below_eta_it_grows_by_steps_and_after_five_by_the_load():
    """Half busy, always. The first four answers of a round trip each raise the reference by a step; the estimate is
    below eta from the first on. After max_stage = 5 steps the window is set by the load: 0.95 / 0.5, within the limit."""
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


def test_the_reference_follows_once_per_round_trip_and_the_window_always():
    """Three answers to packets that were sent before the reference followed: each window is computed from the same
    reference, so answers to one queue do not add up. The fourth packet was sent after."""
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


def test_the_reference_waits_a_round_trip_after_the_first_stamps_too():
    flow = Told()
    flow.pull(0, most=3)
    flow.answer(row(10))
    assert flow.answer(row(30), advance=2) < BDP
    assert flow.reference == BDP
    flow.answer(row(50), advance=2)
    assert flow.reference < BDP


def test_never_more_than_the_line_carries_nor_less_than_the_floor():
    flow = Told(floor=50, max_stage=0)
    flow.answer(row(10, 0.01))
    assert flow.answer(row(30, 0.01)) == BDP
    flow = Told(floor=50)
    flow.answer(row(10, queue=10**9))
    assert flow.answer(row(30, queue=10**9)) == BDP / 50
    assert flow.sender.gap == 50 * flow.sender.ps_per_byte


def test_a_window_below_a_packet_lets_one_go_at_a_time():
    flow = Told(floor=1000)
    flow.answer(row(10, queue=10**9))
    assert flow.answer(row(30, queue=10**9)) == 250
    assert len(flow.pull()) == 1


def test_other_ports_on_the_way_are_kept_to_compare_with():
    flow = Told()
    flow.answer(row(10))
    assert flow.answer(row(30, queue=10**6, port=8)) == BDP
    assert flow.answer(row(50), row(51, port=9)) == BDP
    assert flow.answer(row(70), row(71, port=9)) == pytest.approx(0.95 * BDP + AI, abs=1)
    window = flow.window
    assert flow.answer(row(90, queue=10**6)) == window  # the first of the ports before, but no second


def test_stamps_that_overtook_others_say_nothing():
    flow = Told()
    flow.answer(row(10))
    flow.answer(row(30))
    window = flow.window
    assert flow.answer(row(29, queue=10**6)) == window
    flow.answer(row(50))
    assert flow.load == 1  # compared with those of 30


def test_a_refusal_goes_back_and_tells_as_well():
    flow = Told()
    flow.answer(row(10))
    flow.pull(0, most=10)
    slot = flow.sender.piggyback
    flow.stamp(slot, row(30, queue=BDP))
    flow.control(NACK, slot, 4)
    assert flow.sender.nxt == 4
    assert flow.load == 1
    assert flow.window == pytest.approx(0.95 * BDP + AI, abs=1)


def test_the_receiver_returns_the_slot_by_rider():
    flow = Told(3)
    word = int(flow.run["on_data"](flow.memory, flow.k, flow.r, 1, 4096, 0, 0))
    assert word >> 30 & 1
    assert flow._reply(word & ~(1 << 30)) == ReceiverReply(NACK, 0, 0, 0, 1)
    assert flow.data(2).count == 0


# --- slots ------------------------------------------------------------------------------------------------------


def test_slots_are_a_power_of_two_with_room_for_the_first_window():
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


def test_slots_go_by_turns_and_the_last_is_for_want_of_another():
    flow = small()
    assert send(flow, 8) == [1, 2, 3, 4, 5, 6, 7, 7]
    flow.stamp(3, row(10))
    flow.control(ACK, 3, 3)  # the third packet is back, so the first two are not under way
    assert send(flow, 5) == [1, 2, 3, 7, 7]
    flow.control(ACK, 3, 3)  # the slot's newest packet: everything before it is gone
    assert (flow.sender.numbered, flow.sender.answered) == (9, 9)
    assert send(flow, 7) == [4, 5, 6, 1, 2, 3, 7]


def test_packets_that_were_lost_give_their_slots_back_with_the_next_answer():
    flow = small()
    send(flow, 6)
    flow.stamp(6, row(10))
    flow.control(NACK, 6, 0)
    assert send(flow, 6) == [1, 2, 3, 4, 5, 6]


def test_the_last_slot_says_nothing():
    flow = small()
    send(flow, 8)
    flow.stamp(7, row(10))
    flow.control(ACK, 7, 8)
    flow.stamp(7, row(30, queue=10**6))
    flow.control(ACK, 7, 9)
    assert (flow.window, flow.sender.answered) == (BDP, 0)


def test_the_message_ends():
    flow = Told(3)
    flow.pull()
    for n in (1, 2, 3):
        flow.stamp(n, row(10 * n))
        flow.control(ACK, n, n)
    assert flow.sender.is_done == 1


@pytest.mark.parametrize(("side", "told"), [(6, False), (8, False), (10, True)])
def test_ways_longer_than_what_the_stamps_have_room_for_are_refused(side, told):
    """On two rings of n switches side by side a packet passes n / 2 + 2 of them at most."""
    tables = star_tables(transport="hpcc", switch={"pfc": True})
    tables["topology"] = {"kind": "torus", "dims": [side, 2]}
    if told:
        with pytest.raises(ScenarioError, match=r"space for 6 switches.*the longest path has 7"):
            build_scenario(tables)
    else:
        check_variants([build_scenario(tables)])


@pytest.mark.parametrize(("gpus", "fits"), [(1, True), (2, False)])
def test_switches_within_hosts_count_for_the_room_of_the_stamps(gpus, fits):
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
def test_check_remarks_that_losses_are_dear_and_marks_are_missing(kind):
    said = "; ".join(remarks(build_scenario(star_tables(transport=kind))))
    assert "switch.pfc is off" in said
    assert ("no packet will be marked" in said) == (kind == "dcqcn")
    quiet = {"pfc": True, "ecn_threshold": "64KiB"}
    assert remarks(build_scenario(star_tables(transport=kind, switch=quiet))) == []


def test_time_outs_the_wrong_way_round_are_refused():
    with pytest.raises(ScenarioError, match=r"rto.*is above max_rto"):
        build_scenario(star_tables(transport={"kind": "hpcc", "rto": "2s"}))


def test_no_word_overflows():
    """From nothing to a full port with 10 GB behind it, for as long as is measured; a line of 1 Mbps; 9 s of round trip."""
    for rate, rtt in ((100 * 10**9, T), (10**6, T), (400 * 10**9, 9 * 10**12)):
        flow = Told(word=Word, base_rtt=rtt, rate=rate)
        speed = -(-(8_000_000_000_000 << 16) // rate)
        for time in (1, 2, (1 << 41) + 1, 1 << 43):
            flow.answer((7, 10**10, (time << 16) // speed, time, speed))
            flow.answer((7, 0, (time << 16) // speed, time + 1, speed))
            flow.pull(0, most=1)
        assert flow.window >= 1
