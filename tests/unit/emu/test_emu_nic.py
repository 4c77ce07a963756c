"""The host's interface by hand: turns, classes, pace, and what acknowledgements cost. And the loop below it."""

from __future__ import annotations

import os
import time

import pytest
from nic_bench import LINE, NS, Fake, FakeLoop, bench, slots, start

from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.nic import MAKE_UP_NS, Nic
from gradwire.emu.switches.backend_kind import AHEAD_NS
from gradwire.emu.system.sockets import Sender


def test_single_flow_sends_at_line_rate():
    loop, nic, log = bench()
    assert nic.line == LINE
    start(nic, Fake(log, loop, 1, 5))
    loop.run(1000)
    assert log == [(1, t, t) for t in (0, 100, 200, 300, 400)]


def test_flows_of_a_priority_alternate_and_priorities_are_strict():
    loop, nic, log = bench()
    start(nic, Fake(log, loop, 1, 2, 3), Fake(log, loop, 2, 3, 3), Fake(log, loop, 3, 1, 7))
    loop.run(150)
    start(nic, Fake(log, loop, 4, 2, 0))
    loop.run(10_000)
    assert slots(log) == [(1, 0), (2, 100), (4, 200), (4, 300), (1, 400), (2, 500), (2, 600), (3, 700)]


def test_priorities_beyond_the_last_class_share_the_last_class():
    loop, nic, log = bench(classes=2)
    start(nic, Fake(log, loop, 1, 2, 5), Fake(log, loop, 2, 2, 1))
    loop.run(1000)
    assert [number for number, _ in slots(log)] == [1, 2, 1, 2]


def test_gaps_of_a_paced_flow_are_used_by_other_flows():
    loop, nic, log = bench()
    start(nic, Fake(log, loop, 1, 3, 0, gap=3 * LINE), Fake(log, loop, 2, 4, 1))
    loop.run(10_000)
    assert slots(log) == [(1, 0), (2, 100), (2, 200), (1, 300), (2, 400), (2, 500), (1, 600)]


def test_pacing_counts_from_the_start_of_the_last_packet_on_a_busy_link():
    loop, nic, log = bench()
    start(nic, Fake(log, loop, 1, 3, 1, gap=3 * LINE // 2), Fake(log, loop, 2, 2, 0))
    loop.run(10_000)
    assert slots(log) == [(2, 0), (2, 100), (1, 200), (1, 350), (1, 500)]


def test_acknowledgements_occupy_the_link():
    loop, nic, log = bench()
    start(nic, Fake(log, loop, 1, 3))
    loop.run(150)
    nic.add_control_bytes(60)  # waits for the packet that ends at 200
    loop.run(1000)
    assert slots(log) == [(1, 0), (1, 100), (1, 260)]
    nic.add_control_bytes(60)
    start(nic, Fake(log, loop, 2, 1))
    loop.run(2000)
    assert slots(log)[-1] == (2, 1060)


def test_finished_flow_is_not_polled():
    loop, nic, log = bench()
    flows = Fake(log, loop, 1, 5), Fake(log, loop, 2, 5)
    start(nic, *flows)
    loop.run(120)
    flows[0].done = True
    loop.run(10_000)
    assert [number for number, _ in slots(log)] == [1, 2, 2, 2, 2, 2]
    nic.begin(flows[0])
    nic.serve()
    assert len(log) == 6


def test_update_resumes_a_blocked_flow():
    loop, nic, log = bench()
    flow = Fake(log, loop, 1, 1)
    start(nic, flow)
    loop.run(500)
    flow.left = 1
    nic.update(flow)
    nic.serve()
    loop.run(1000)
    assert slots(log) == [(1, 0), (1, 500)]


def test_restart_clears_link_occupancy_of_the_previous_clock():
    """Before the run, the loop uses the machine's clock, which would block the link for the machine's uptime."""
    loop, nic, log = bench()
    loop.time = 50_000 * 1_000_000_000
    nic.add_control_bytes(60)
    loop.time = 0
    nic.restart()
    start(nic, Fake(log, loop, 1, 2))
    loop.run(1000)
    assert slots(log) == [(1, 0), (1, 100)]


def test_flow_timers_can_be_postponed_advanced_and_cancelled():
    loop, nic, log = bench()
    flow = Fake(log, loop, 1, 0)
    flow.timer = 300 * NS
    nic.update(flow)
    loop.run(200)
    flow.timer = 500 * NS
    nic.update(flow)
    loop.run(450)
    assert flow.fired == []
    loop.run(2000)
    assert flow.fired == [500] and flow.timer == 0
    flow.timer = 3000 * NS
    nic.update(flow)
    flow.timer = 2500 * NS  # earlier than what is set
    nic.update(flow)
    loop.run(2600)
    assert flow.fired == [500, 2500]
    flow.timer = 0
    loop.run(5000)
    assert flow.fired == [500, 2500]


def test_sending_ahead_preserves_the_schedule_with_fewer_calls():
    loop, nic, log = bench(ahead_ns=400)
    start(nic, Fake(log, loop, 1, 20))
    loop.run(10_000)
    assert slots(log) == [(1, 100 * k) for k in range(20)]
    assert all(0 <= slot - at <= 400 for _, slot, at in log)
    assert len({at for _, _, at in log}) < 15, "calls"


@pytest.mark.parametrize("late, ideal", [(0, True), (150, True), (600, False)])
def test_timer_lateness_within_the_send_ahead_costs_no_throughput(late, ideal):
    loop, nic, log = bench(late=late, ahead_ns=400)
    start(nic, Fake(log, loop, 1, 50))
    loop.run(100_000)
    last = log[-1][1]
    assert last == 4900 if ideal else last > 4900
    # and never more than the line carries: what has been handed over is at most `ahead` early
    assert all(slot - at <= 400 for _, slot, at in log)


def test_paced_flow_compensates_for_late_timers_and_is_never_early():
    loop, nic, log = bench(late=150, ahead_ns=400)
    start(nic, Fake(log, loop, 1, 30, gap=5 * LINE))
    loop.run(100_000)
    assert all(at >= 500 * k for k, (_, _, at) in enumerate(log))
    assert log[-1][2] <= 500 * 29 + 150


def test_paced_flow_does_not_compensate_for_idle_time():
    """Time without data to send does not count as lateness."""
    loop, nic, log = bench(ahead_ns=400)
    loop.run(1000)
    flow = Fake(log, loop, 1, 3, gap=5 * LINE)
    start(nic, flow)
    loop.run(5000)
    flow.left = 2
    nic.update(flow)
    nic.serve()
    loop.run(10_000)
    assert slots(log) == [(1, at) for at in (1000, 1500, 2000, 5000, 5500)]


def test_paced_flow_started_by_a_late_timer_does_not_accumulate_delay():
    loop, nic, log = bench(late=150, ahead_ns=400)
    loop.at(1000, lambda: start(nic, Fake(log, loop, 1, 3, gap=5 * LINE)))
    loop.run(10_000)
    assert [at for _, _, at in log] == [1150, 1650, 2150]  # each timer late, and no more than that


@pytest.mark.parametrize("late", [MAKE_UP_NS // 2, 2 * MAKE_UP_NS])
def test_paced_flow_compensates_for_at_most_make_up_ns(late):
    gap = 20_000  # times 100 ns: further apart than any timer is late
    loop, nic, log = bench(late=late, ahead_ns=AHEAD_NS)
    start(nic, Fake(log, loop, 1, 11, gap=gap * LINE))
    loop.run(100_000_000)
    lost = max(0, late - MAKE_UP_NS)
    assert log[-1][2] == 10 * 100 * gap + late + 9 * lost


def test_send_times_accumulate_no_rounding_error():
    """Slots take 33.1 ns, and no packet loses a nanosecond to rounding."""
    loop = FakeLoop()
    nic = Nic(loop, 24_169_184_290, Sender())
    log = []
    flow = Fake(log, loop, 1, 1000)
    start(nic, flow)
    loop.run(100_000)
    assert flow.at == 999 * -(-100 * nic.line >> 16)

    # and a paced flow that begins in the nanosecond in which the line becomes free keeps to the line's time
    loop = FakeLoop()
    nic = Nic(loop, 24_169_184_290, Sender())
    start(nic, Fake(log, loop, 1, 1))
    free = -(-100 * nic.line >> 16)
    loop.run(-(-free // NS))
    assert 0 < loop.now() * NS - free < NS
    flow = Fake(log, loop, 2, 2, gap=10 * nic.line)
    start(nic, flow)
    loop.run(10_000)
    assert flow.at == free + (100 * 10 * nic.line + 0xFFFF >> 16)

    # nor does its pace lose a nanosecond to rounding with every packet
    loop = FakeLoop()
    nic = Nic(loop, 24_169_184_290, Sender())
    flow = Fake(log, loop, 3, 1000, gap=3 * nic.line + 7)
    start(nic, flow)
    loop.run(200_000)
    assert flow.at == 999 * (100 * (3 * nic.line + 7) + 0xFFFF >> 16)


# --- the loop


def test_event_loop_runs_timers_in_order_and_never_early():
    loop, seen = EpollLoop(time.monotonic_ns()), []

    def note(name, when):
        assert loop.now() >= when
        seen.append(name)

    soon = loop.now() + 200_000_000  # enough to have set them all before the first is due, on any machine
    for name, when in (("c", soon + 3000), ("a", soon + 1000), ("b", soon + 2000), ("b2", soon + 2000), ("past", -5)):
        loop.at(when, lambda name=name, when=when: note(name, when))
    loop.at(soon + 4000, loop.stop)
    loop.run()
    assert seen == ["past", "a", "b", "b2", "c"]
    found = loop.punctuality()
    assert found["timers"] == 5 and 0 <= found["p99_ns"] <= found["max_ns"] < 10**9
    assert loop._timers == []
    loop.close()


def test_event_loop_handles_files_and_timers():
    loop, seen = EpollLoop(time.monotonic_ns()), []
    reading, writing = os.pipe()

    def read():
        seen.append(os.read(reading, 10))
        if len(seen) == 3:
            loop.reader(reading, None)
            loop.at(loop.now(), loop.stop)
        else:
            loop.at(loop.now() + 300_000, lambda: os.write(writing, b"x"))

    loop.reader(reading, read)
    loop.writer(writing, lambda: (loop.writer(writing, None), os.write(writing, b"first")))
    loop.run()
    assert seen == [b"first", b"x", b"x"]
    loop.close()


def test_repeating_timer_does_not_starve_file_events():
    loop, seen = EpollLoop(time.monotonic_ns()), []
    reading, writing = os.pipe()

    def again():
        seen.append(1)
        if len(seen) == 10:
            os.write(writing, b"x")
        assert len(seen) < 100
        loop.at(0, again)

    loop.reader(reading, loop.stop)
    loop.at(0, again)
    loop.run()
    loop.close()


def test_scheduled_returns_the_due_time_of_the_running_callback():
    """Late timers report their due time; file callbacks and calls from outside report the present."""
    loop = EpollLoop()
    there, here = os.pipe()
    seen = []
    start = loop.now()

    def readable():
        os.read(there, 1)
        before = loop.now()
        seen.append(before <= min(loop.agent.due_ns, loop.now()) <= loop.now())
        loop.stop()

    def late():
        time.sleep(0.002)
        seen.append(min(loop.agent.due_ns, loop.now()) - start)
        os.write(here, b"x")

    loop.at(start + 1_000_000, lambda: time.sleep(0.003))
    loop.at(start + 2_000_000, late)
    loop.reader(there, readable)
    loop.run()
    assert seen == [2_000_000, True]
    before = loop.now()
    assert before <= min(loop.agent.due_ns, loop.now()) <= loop.now()
    loop.close()
    os.close(there)
    os.close(here)
