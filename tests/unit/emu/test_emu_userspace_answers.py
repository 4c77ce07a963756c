"""How late hosts answer, as the userspace switch sees it, and when packets are handed over."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from test_emu_userspace_packet import gradwire, ipv4
from userspace_cases import FULL, US, Driven, packet, star

from gradwire.emu.native.calls import bytes_at, words_at
from gradwire.emu.planning.base_rtt import base_round_trip_ns
from gradwire.emu.switches.userspace_switch import answer_delay
from gradwire.emu.switches.userspace_switch.layout import SwitchedNetwork, state_of
from gradwire.emu.switches.userspace_switch.network import ANSWERS, UserspaceSwitch
from gradwire.emu.switches.userspace_switch.process import EARLY_PS, Lateness, SwitchProcess, early_ps
from gradwire.jit.compiled import njit
from gradwire.scenarios.wire import GRADWIRE_PORT

MS = 10**9


@njit
def give(address, host, frame, length, due):
    answer_delay.on_delivery(SwitchedNetwork(words_at(address), 0), host, bytes_at(frame), length, due)


@njit
def take_from(address, host, frame, length, now):
    answer_delay.on_packet(SwitchedNetwork(words_at(address), 0), host, bytes_at(frame), length, now)


class Watched:
    """What the switch has seen of packets that hosts are given and send; times in ps."""

    def __init__(self) -> None:
        self.state = state_of(star(3), packets=2)

    def given(self, host: int, message: int, number: int, due: int, kind: str = "data") -> None:
        data = np.frombuffer(ipv4(gradwire(message, number, kind)), dtype=np.uint8)
        give(self.state.address, host, data.ctypes.data, len(data), due)

    def sends(self, host: int, message: int, number: int, now: int, kind: str = "ack") -> None:
        data = np.frombuffer(ipv4(gradwire(message, number, kind, 7000, GRADWIRE_PORT)), dtype=np.uint8)
        take_from(self.state.address, host, data.ctypes.data, len(data), now)

    @property
    def seen(self) -> tuple[int, int]:
        """Answers, and nanoseconds that they were late, together."""
        return self.state.network.answers, self.state.network.answered_late_ns


def test_answer_delay_counts_from_the_due_time_of_the_packet():
    watched = Watched()
    watched.given(1, 5, 0, 10 * MS)
    watched.sends(1, 5, 0, 10 * MS + 130 * US)
    assert watched.seen == (1, 130_000)
    watched.given(1, 5, 1, 12 * MS)
    watched.sends(1, 5, 1, 12 * MS - 30 * US)  # it had been handed over early
    assert watched.seen == (2, 100_000)


def test_answer_delay_tracks_one_packet_per_host():
    watched = Watched()
    for number in range(3):
        watched.given(1, 5, number, (1 + number) * MS)
    for number in (2, 1, 0):
        watched.sends(1, 5, number, 6 * MS)
    assert watched.seen == (1, 5_000_000)
    watched.sends(1, 5, 0, 7 * MS)  # once more: not waited for any longer
    assert watched.seen == (1, 5_000_000)


def test_answer_delay_tracks_hosts_independently():
    watched = Watched()
    watched.given(1, 5, 0, 1 * MS)
    watched.given(2, 6, 0, 2 * MS)
    watched.sends(2, 5, 0, 3 * MS)
    watched.sends(1, 6, 0, 3 * MS)
    assert watched.seen == (0, 0)
    watched.sends(2, 6, 0, 3 * MS)
    watched.sends(1, 5, 0, 3 * MS)
    assert watched.seen == (2, 3_000_000)


def test_unrelated_packets_do_not_count_as_answers():
    watched = Watched()
    watched.given(1, 5, 0, 1 * MS, kind="probe")
    watched.sends(1, 5, 0, 2 * MS)
    watched.given(1, 5, 7, 1 * MS)
    watched.sends(1, 5, 6, 2 * MS)
    watched.sends(1, 4, 7, 2 * MS)
    watched.sends(1, 5, 7, 2 * MS, kind="stop")
    assert watched.seen == (0, 0)


def test_tracked_packet_without_answer_expires():
    """The last packets of a message are not acknowledged, because the message was complete before."""
    watched = Watched()
    watched.given(1, 5, 9, 1 * MS)
    watched.given(1, 6, 0, 1 * MS + answer_delay.FORGOTTEN_PS - 1)
    watched.sends(1, 6, 0, 30 * MS)
    assert watched.seen == (0, 0)
    watched.given(1, 6, 1, 1 * MS + answer_delay.FORGOTTEN_PS)
    watched.sends(1, 6, 1, 1 * MS + answer_delay.FORGOTTEN_PS + 50 * US)
    assert watched.seen == (1, 50_000)


def late_by(mean_ns: float, many: int = ANSWERS) -> Lateness:
    return Lateness(answers=many, answered_late_ns=round(mean_ns * many))


def test_warning_if_mean_answer_delay_exceeds_share_of_base_round_trip():
    plan = star(2, options={"answers_late": 0.16})
    limit = 0.16 * base_round_trip_ns(plan)
    switch = UserspaceSwitch(plan)
    assert switch._warnings(late_by(limit - 1)) == []
    (said,) = switch._warnings(late_by(limit + 1))
    assert said.startswith(f"mean delay of hosts' answers {limit / 1000:.0f} us, base round-trip time ")
    assert "(limit 16 % of it)" in said
    assert switch._warnings(late_by(10 * limit, ANSWERS - 1)) == []
    assert UserspaceSwitch(star(2))._warnings(late_by(10 * limit)) == []
    virtual = star(2, clock="virtual", options={"answers_late": 0.16})
    assert UserspaceSwitch(virtual)._warnings(late_by(10 * limit)) == []


@pytest.mark.parametrize("options", [{}, {"answers_late": None}, {"answers_late": 1.0}])
def test_answer_delay_without_a_limit_yields_a_note(options, monkeypatch):
    plan = star(2, options=options)
    switch = UserspaceSwitch(plan)
    switch._control = object()
    limit = 0.16 * base_round_trip_ns(plan)
    for mean, told in ((limit - 1, False), (limit + 1, options != {"answers_late": 1.0})):
        monkeypatch.setattr(switch, "lateness", lambda mean=mean: late_by(mean))
        assert bool(switch.notes()) == told
    switch.plan = star(2, clock="virtual", options=options)
    assert switch.notes() == []


def test_packets_within_the_early_window_are_delivered_together():
    """Packets of two senders reach two hosts 40 us apart. Within the early window, the second is delivered with the
    first."""
    due = 2 * FULL + 2 * US

    def handed(early: int, until: int) -> list[int]:
        fabric = Driven(star(4))
        fabric.state.network.early = early
        fabric.arrive(0, 0, packet(2))
        fabric.advance(40 * US)
        fabric.arrive(40 * US, 1, packet(3))
        return [time for time, _, _ in fabric.advance(until)]

    assert handed(0, due - 1) == [] and handed(0, due) == [due]
    assert handed(40 * US, due - 40 * US - 1) == []
    assert handed(40 * US, due - 40 * US) == [due]
    assert handed(40 * US, due - 1) == [due]
    assert handed(40 * US, due) == [due, due + 40 * US]


def test_early_delivery_does_not_change_transmission_times():
    """Marks and drops follow the packets' own times."""
    early, exact = Driven(star(3)), Driven(star(3))
    early.state.network.early = 100 * US
    arrivals = [(i * FULL // 2, i % 2, packet(2)) for i in range(40)]
    assert [time for time, _, _ in early.feed(*arrivals)] == [time for time, _, _ in exact.feed(*arrivals)]
    assert [(start, port) for start, port, *_ in early.log] == [(start, port) for start, port, *_ in exact.log]


@pytest.mark.parametrize(("clock", "early"), [("wall", 30 * US), ("virtual", 0)])
def test_early_delivery_applies_only_to_the_wall_clock(clock, early):
    parent, control = socket.socketpair()
    switch = SwitchProcess(star(2, latency=30 * US, clock=clock), [], control)
    assert switch.fabric.state.network.early == early
    switch.epoll.close()
    parent.close()
    control.close()


def test_early_delivery_is_limited_by_the_cable_latency():
    assert early_ps(star(2, latency=30 * US)) == 30 * US
    assert early_ps(star(2, latency=3 * MS)) == EARLY_PS
