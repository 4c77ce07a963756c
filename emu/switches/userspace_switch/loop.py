"""Main loop of the switch's process: sleep, read, apply the rules, write. Compiled.

It sleeps until a device, the timer of the next event, or the parent is ready. A packet's time is the clock's when it is
read; its further times are exact, however late the process wakes up, except for its delivery, whose lateness is
counted. If time stands still while code runs (`W_STILL`: virtual time), the clock is read only on waking up, since
reading it is an expensive system call there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.emu.native import calls
from gradwire.emu.native.calls import bytes_at, words_at
from gradwire.emu.switches.userspace_switch import answer_delay, rules
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.frames import parse
from gradwire.jit.compiled import njit

ASKED, FULL, INTERRUPTED, FAILED = range(4)
"""Reasons for which `serve` returns: a request of the parent, no space for packets, a signal, a failed system call."""
BATCH = 64
"""Packets read from one host in a row (our choice)."""
EVENTS = 64


class Files:
    """The files to wait for, entered into the words of a `State`; must live as long as the state is used.

    epoll, timer, control : file numbers; the epoll has all others.
    devices : the TUN of every host.
    """

    def __init__(self, state: at.State, epoll: int, timer: int, control: int, devices: Sequence[int]) -> None:
        self._devices = np.array(devices, dtype=np.int64)
        self._host_of = np.full(max(timer, control, *devices) + 1, -1, dtype=np.int64)
        self._host_of[self._devices] = np.arange(len(devices))
        self._events = np.zeros(EVENTS * calls.EVENT_BYTES, dtype=np.uint8)
        self._spec = np.zeros(4, dtype=np.int64)
        state.words[[at.F_EPOLL, at.F_TIMER, at.F_CONTROL]] = epoll, timer, control
        arrays = (self._devices, self._host_of, self._events, self._spec)
        state.words[at.A_DEVICES : at.A_SPEC + 1] = [array.ctypes.data for array in arrays]


@njit("int64(int64)")
def serve(address):
    """Run the network of the words at `address` until one of the reasons above."""
    W = words_at(address)
    W[at.W_TIMER_NS] = 0  # the previous call may have ended before it handled the timer's event
    while True:
        wake = rules.wake_time(W)
        if wake >= 0:
            due_ns = W[at.W_ORIGIN_NS] - (-wake // 1000)
            if due_ns != W[at.W_TIMER_NS]:
                W[at.W_TIMER_NS] = due_ns
                if calls.set_timer(W[at.F_TIMER], due_ns, W[at.A_SPEC]) < 0:
                    return _failed(W)
        waiting = _share(W)
        ready = calls.wait(W[at.F_EPOLL], W[at.A_EVENTS], EVENTS, -1)
        if ready < 0:
            return _failed(W)
        W[at.W_WOKEN_NS] = calls.monotonic_ns(W[at.A_SPEC])
        if W[at.W_WOKEN_NS] - waiting > calls.AT_ONCE_NS:
            W[at.W_TURN_NS] = W[at.W_WOKEN_NS]
        asked = False
        for i in range(ready):
            number = bytes_at(W[at.A_EVENTS] + i * calls.EVENT_BYTES + calls.EVENT_FILE)
            file = int(number[0]) | int(number[1]) << 8 | int(number[2]) << 16 | int(number[3]) << 24
            if file == W[at.F_TIMER]:
                W[at.W_TIMER_NS] = 0  # edge-triggered: nothing has to be read
                _catch_up(W)
            elif file == W[at.F_CONTROL]:
                asked = True
            elif not _read(W, words_at(W[at.A_HOST_OF])[file]):
                return FAILED if W[at.W_ERRNO] else FULL
        _catch_up(W)
        if asked:
            return ASKED


@njit
def _share(W):
    """Yield to agents of the same real-time priority after a long turn; return the time if turns are shared."""
    if W[at.W_SHARE_NS] == 0:
        return 0
    now = calls.monotonic_ns(W[at.A_SPEC])
    if now - W[at.W_TURN_NS] > W[at.W_SHARE_NS]:
        calls.give_way()
        W[at.W_TURN_NS] = now = calls.monotonic_ns(W[at.A_SPEC])
    return now


@njit
def _failed(W):
    error = calls.error()
    if error == calls.INTERRUPTED:
        return INTERRUPTED
    W[at.W_ERRNO] = error
    return FAILED


@njit
def _catch_up(W):
    """Advance the network to the present and deliver packets that have arrived."""
    clock = W[at.W_WOKEN_NS] if W[at.W_STILL] else calls.monotonic_ns(W[at.A_SPEC])
    until = (clock - W[at.W_ORIGIN_NS]) * 1000
    while True:
        packet = rules.next_reached(W, until)
        if packet < 0:
            return
        host, length = W[at.W_REACHED], rules.packet_of(W, packet)[at.K_LENGTH]
        device = words_at(W[at.A_DEVICES])[host]
        if calls.write(device, W[at.A_FRAMES] + packet * W[at.FRAME_BYTES], length) < 0:
            W[at.W_REFUSED] += 1
        if W[at.W_REACHED_AT] >= W[at.W_WATCHED]:
            answer_delay.delivered(W, host, rules.frame_of(W, packet), length, W[at.W_REACHED_AT])
            _count(W, max(until - W[at.W_REACHED_AT], 0) // 1000)
        rules.release(W, packet)


@njit
def _count(W, late_ns):
    bits = 0
    while late_ns >> bits:
        bits += 1
    words_at(W[at.A_LATE])[bits] += 1
    W[at.W_WORST_NS] = max(W[at.W_WORST_NS], late_ns)


@njit
def _read(W, host):
    """Read some packets of a host; return False if there is no space, or on an error."""
    device = words_at(W[at.A_DEVICES])[host]
    for _ in range(BATCH):
        if not rules.room(W):
            return False
        packet = rules.take(W)
        length = calls.read(device, W[at.A_FRAMES] + packet * W[at.FRAME_BYTES], W[at.FRAME_BYTES])
        if length < 0:
            rules.release(W, packet)
            if calls.error() == calls.AGAIN:
                return True
            W[at.W_ERRNO] = calls.error()
            return False
        frame, row = rules.frame_of(W, packet), rules.packet_of(W, packet)
        if parse(frame, row, length, W[at.W_FIRST_ADDRESS], W[at.W_HOSTS]):
            _catch_up(W)
            answer_delay.heard(W, host, frame, length, W[at.W_NOW])
            rules.arrive(W, host, packet)
        else:
            rules.release(W, packet)  # not for a host
    return True
