"""Where everything stands between two windows: whether the network is quiet, and what jobs are in the middle of.

A network is quiet when nothing is on any link, waits in any queue or is still to be heard of by anybody, so that
nothing of it outlives the moment but what lasts by itself (`FastForward` says what may). What jobs are in the middle of
is told as numbers that do not depend on where it lies in the state, and counts times from a moment and messages and
steps from where they have come to: two moments that are told alike go on alike.
"""

from __future__ import annotations

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.laid import Laid
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.over import NOTES
from gradwire.sim.fabric.track import Track

LASTS = (*range(at.X_DEFICIT, at.X_DEFICIT + 8), at.X_TURN)
"""Words of a port that outlive a quiet moment: whose turn it is."""
KEPT = (
    at.B_STATE, at.B_GOT, at.B_SENT, at.B_RETRANSMITTED, at.B_MARKED, at.B_TRIMMED, at.B_TIMEOUTS
)  # fmt: skip
"""What the book says of a message beside times."""


def is_quiet(memory: Memory, flows: Flows) -> bool:
    """Whether nothing is under way in a network of which no message has records."""
    M, ports, nodes = memory.M, memory.port_base, memory.node_base
    heads, more = M[ports + at.P_HEAD], M[ports + at.P_MORE]
    hosts = nodes[M[nodes + at.N_KIND] == at.HOST]
    waits = [M[ports + at.P_QUEUE], *(M[more + word] for word in (at.X_SIGNAL, at.X_WANTED, at.X_PAUSED))]
    waits += [M[hosts + word] for word in (at.N_READY_MASK, at.N_STILL, at.N_HELD, at.N_PULL_HEAD)]
    return bool(
        (M[ports + at.P_TAIL] == M[heads]).all()
        and (M[ports + at.P_SPILL_TAIL] == M[heads + at.HEAD_SPILL]).all()
        and not any(each.any() for each in waits)
        and not any(_expects(memory, host) for host in hosts[M[hosts + at.N_HEAP_COUNT] > 0].tolist())
    )


def _expects(memory: Memory, host: int) -> bool:
    """Whether any entry of a host's heap is more than what is left of a timer that nobody waits for."""
    M, heap = memory.M, int(memory.M[host + at.N_HEAP])
    times, keys = M[heap : heap + 2 * int(M[host + at.N_HEAP_COUNT])].reshape(-1, 2).T
    record = (keys & at.MASK_KEY_SENDER) >> 2
    sends = record < memory.receivers
    armed = np.where(sends, record + at.S_ARMED, record + at.R_ARMED)
    timer = np.where(sends, record + at.S_TIMER, record + at.R_TIMER)
    flow = (record - memory.receivers) // at.RECEIVER_WORDS
    sender = np.where(sends, record, memory.senders + flow * at.SENDER_WORDS)
    over = sends & (M[sender + at.S_DONE] != 0)
    reused = (M[sender + at.S_ORDER] ^ keys) >> at.KEY_ORDER != 0
    stale = over | reused | (M[armed] != times) | (M[timer] == 0)
    return bool(((keys & 3 != at.WHAT_TIMER) | ~stale).any())


def standing(memory: Memory, flows: Flows, tracks: list[Track], anchor: int) -> bytes:
    """What jobs are in the middle of while the network is quiet, as words. `anchor`: the next thing that happens."""
    M, nodes = memory.M, memory.node_base
    found = [_timers(memory, tracks, anchor)]
    found += flows.lasting(anchor)
    pulls = M[nodes + at.N_PULL_AT][M[nodes + at.N_KIND] == at.HOST]
    found.append(M[nodes + at.N_SLOTS][M[nodes + at.N_KIND] == at.SWITCH])
    more = M[memory.port_base + at.P_MORE]
    found += [np.maximum(pulls - anchor, 0), M[more[:, None] + np.array(LASTS)].ravel()]
    for track in tracks:
        found += _track(memory, track, anchor)
        for laid in track.live:
            found += _laid(memory, flows, track, laid, anchor)
    return b"".join(np.append(each, len(each)).astype(np.int64).tobytes() for each in found)


def _timers(memory: Memory, tracks: list[Track], anchor: int) -> Ints:
    """The timers of programs in their order: when, and of which process or event."""
    M, base = memory.M, int(memory.M[at.H_TIMERS])
    rows = M[base : base + at.TIMER_WORDS * int(M[at.H_TIMER_COUNT])].reshape(-1, at.TIMER_WORDS)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    found = [(time - anchor, *_named(tracks, int(key))) for time, _, key in rows.tolist()]
    return np.array(found, dtype=np.int64).ravel()


def _named(tracks: list[Track], key: int) -> tuple[int, int, int]:
    """A timer's key by part, step from the first one that is laid on (-1: a process), and number there."""
    for number, track in enumerate(tracks):
        stretches = [(-1, track.processes, at.PROCESS_WORDS * len(track.part.hosts))]
        if key & 1:
            stretches = [(i, laid.events, at.EVENT_WORDS * len(laid.step)) for i, laid in enumerate(track.live)]
        for step, base, words in stretches:
            if 0 <= (key >> 1) - base < words:
                return number, step, (key >> 1) - base
    return -1, -1, key


def _track(memory: Memory, track: Track, anchor: int) -> list[Ints]:
    """How far processes have come, until when stations are busy, and what queues hold back."""
    M, first = memory.M, track.handed.steps
    count = len(track.part.hosts)
    rows = M[track.processes : track.processes + at.PROCESS_WORDS * count].reshape(count, at.PROCESS_WORDS)
    left = rows[:, [at.W_END, at.W_NEXT_END]] - rows[:, [at.W_AT, at.W_NEXT]]
    stations = M[track.stations : track.stations + len(track.part.stations)]
    queues = np.array([base for _, base in sorted(track.queues.items())], dtype=np.int64)
    return [
        np.array([len(track.live), track.laid - first, *(len(each) for each in track.pending)]),
        rows[:, at.W_BEGUN] - first, left.ravel(), rows[:, at.W_NEXT] > 0,
        rows[:, [at.W_STARVED, at.W_SLOW, at.W_COMPUTED]].ravel(),
        np.maximum(stations - anchor, 0), M[queues + at.Q_COUNT], M[queues + at.Q_UNDER_WAY],
    ]  # fmt: skip


def _laid(memory: Memory, flows: Flows, track: Track, laid: Laid, anchor: int) -> list[Ints]:
    """What has happened of a step."""
    M, n, count = memory.M, len(laid), len(track.part.hosts)

    def since(times: Ints, none: int = -1) -> Ints:
        return np.where(times > none, times - anchor, 1)  # what has happened is not after it

    messages = M[laid.messages : laid.messages + at.MESSAGE_WORDS * n].reshape(n, at.MESSAGE_WORDS)
    events = M[laid.events : laid.events + at.EVENT_WORDS * len(laid.step)].reshape(-1, at.EVENT_WORDS)
    waits = (events[:, at.E_NEEDS] != at.FIRED) & (events[:, at.E_WAITER] > 0)
    book = flows.book.rows(laid.first, n)
    notes = M[laid.notes : laid.notes + NOTES * count].reshape(count, NOTES)
    return [
        np.array([laid.first - flows.book.count, M[laid.left], M[laid.left + 2]]),
        since(M[[laid.left + 1, laid.left + at.LEFT_SINCE]], 0),
        events[:, at.E_NEEDS], np.where(waits, events[:, at.E_WAITER] - track.processes, -1),
        since(messages[:, at.G_READY]), since(messages[:, at.G_RELEASED]), messages[:, at.G_FLOW] > 0,
        book[:, KEPT].ravel(), since(book[:, at.B_END]), since(notes[:, :-1]).ravel(), notes[:, -1],
    ]  # fmt: skip
