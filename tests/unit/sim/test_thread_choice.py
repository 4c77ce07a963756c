"""One thread or all together, by made-up speeds on a made-up clock."""

from __future__ import annotations

import pytest

from gradwire.jit.records.constants import BUSY, EXHAUSTED, QUIET
from gradwire.sim.engine.thread_choice import LONGEST_PAUSE_S, SUSPECT_S, TRUST_S, ThreadChoice

CALL_S = 0.05


class Machine:
    """Makes calls of an engine whose windows have many packets, at a speed that may change; counts time in each way."""

    def __init__(self, threads: int = 2) -> None:
        self.now = 0.0
        self.choice = ThreadChoice(threads, clock=lambda: self.now)
        self.spent = {"one": 0.0, "all": 0.0}
        self.packets = 0

    def run(self, seconds: float, *, one: float, together: float, share: float = 1.0) -> None:
        """Advance for so long with these packets per second; windows are busy all the time. Both threads together have
        `share` of the processor time that they could use."""
        until = self.now + seconds
        trial = False
        while self.now < until:
            alone = self.choice.is_single_threaded
            wants = alone and not self.choice.is_forced
            spent = CALL_S / 16 if trial or wants else CALL_S  # the engine returns as soon as it finds busy windows
            packets = int(spent * (one if alone else together))
            self.now += spent
            self.packets += packets
            self.spent["one" if alone else "all"] += spent
            trial = self.choice.note(BUSY if wants else EXHAUSTED, packets, spent, 2 * share * spent)


def test_all_threads_are_used_if_faster():
    machine = Machine()
    machine.run(10, one=1e7, together=1.8e7)
    assert machine.spent["one"] < 0.02 * 10


def test_single_thread_is_used_if_all_threads_are_slower():
    """Two threads that share a processor are ten times slower than one. The run takes at most 5 % longer than with
    one."""
    machine = Machine()
    machine.run(20, one=1e7, together=1e6, share=0.5)
    assert machine.packets > 0.95 * 20 * 1e7
    assert machine.spent["all"] < 0.05 * 20


def test_threads_with_less_than_one_processor_pause():
    """If other programs leave all threads together less than one processor, waiting for each other outweighs the rest,
    also where a short measurement says that one thread is as slow. Trials take at most a twentieth of the time."""
    machine = Machine()
    machine.run(20, one=1e6, together=1e6, share=0.2)
    assert machine.spent["all"] < 0.05 * 20


def test_slow_threads_are_detected_without_processor_time():
    """A virtual machine may share its processors with other guests."""
    machine = Machine()
    machine.run(20, one=1e7, together=1e6)
    assert TRUST_S < machine.spent["all"] < TRUST_S + 0.05 * 20


def test_thread_choice_follows_changes_of_machine_load():
    machine = Machine()
    machine.run(5, one=1e7, together=1.8e7)
    machine.spent = {"one": 0.0, "all": 0.0}
    machine.run(5, one=4e6, together=4e5, share=0.5)
    assert machine.spent["one"] > 4.0
    machine.run(LONGEST_PAUSE_S, one=1e7, together=1.8e7)  # the last pause ends
    machine.spent = {"one": 0.0, "all": 0.0}
    machine.run(5, one=1e7, together=1.8e7)
    assert machine.spent["all"] > 4.8


def test_costlier_packets_do_not_trigger_single_thread_trial():
    machine = Machine()
    machine.run(5, one=1e7, together=1.8e7)
    machine.run(5, one=2e6, together=3.6e6)
    machine.spent = {"one": 0.0, "all": 0.0}
    machine.run(5, one=2e6, together=3.6e6)
    assert machine.spent["all"] > 4.8


def test_windows_with_few_packets_use_one_thread():
    choice = ThreadChoice(2, clock=lambda: 0.0)
    assert choice.is_single_threaded and not choice.is_forced
    assert choice.note(BUSY, 10**6, CALL_S, CALL_S) and not choice.is_single_threaded
    choice.note(QUIET, 10, CALL_S / 100, CALL_S / 50)
    assert choice.is_single_threaded and not choice.is_forced


@pytest.mark.parametrize(("share", "seconds"), [(1.0, TRUST_S), (0.95, TRUST_S), (0.85, SUSPECT_S)])
def test_single_thread_is_measured_earlier_if_processors_are_scarce(share, seconds):
    choice = ThreadChoice(2, clock=lambda: 0.0)
    choice.note(BUSY, 10**6, CALL_S, CALL_S)
    for _ in range(round(seconds / CALL_S) - 1):
        assert not choice.note(EXHAUSTED, 10**6, CALL_S, 2 * share * CALL_S) and not choice.is_single_threaded
    assert choice.note(EXHAUSTED, 10**6, 1.1 * CALL_S, 2.2 * share * CALL_S)  # the measurement is no longer than needed
    assert choice.is_single_threaded and choice.is_forced
    assert choice.note(EXHAUSTED, 10**6, CALL_S, CALL_S) and not choice.is_single_threaded


@pytest.mark.parametrize("alone", [True, False])
def test_fixed_thread_choice_never_changes(alone):
    choice = ThreadChoice(2)
    choice.fix(alone)
    for status in (BUSY, QUIET, EXHAUSTED):
        choice.note(status, 1, 1.0, 1.0)
        assert choice.is_single_threaded == alone and choice.is_forced
