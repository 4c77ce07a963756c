"""Snapshots of a network between two windows: is it quiet, and what are jobs in the middle of?

A network is quiet when no packet is on a link or in a queue and no event is pending, so that only persistent state
outlives the moment (see `FastForward`). The state of jobs is expressed in numbers that do not depend on positions in
memory, with times relative to a moment and messages and steps relative to current counts: equal snapshots evolve
equally.
"""

from __future__ import annotations

import numpy as np

from gradwire.jit import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.program.completed_step import NOTE_COLUMNS
from gradwire.sim.engine.program.loaded_step import LoadedStep
from gradwire.sim.engine.program.track import Track

PERSISTENT_PORT_WORDS = (*range(at.X_DEFICIT, at.X_DEFICIT + 8), at.X_TURN)
"""Words of a port that outlive a quiet moment: the turns of its classes."""
COMPARED_LOG_WORDS = (at.B_STATE, at.B_GOT, at.B_SENT, at.B_RETRANSMITTED, at.B_MARKED, at.B_TRIMMED, at.B_TIMEOUTS)
"""Words of a message's row in the message log other than times."""


def is_quiet(memory: EngineMemory, flows: Flows) -> bool:
    """Return True if nothing is under way in a network none of whose messages has records."""
    M, ports, nodes = memory.M, memory.port_base, memory.node_base
    heads, more = M[ports + at.P_HEAD], M[ports + at.P_MORE]
    hosts = nodes[M[nodes + at.N_KIND] == at.HOST]
    pending = [M[ports + at.P_QUEUE], *(M[more + word] for word in (at.X_SIGNAL, at.X_WANTED, at.X_PAUSED))]
    pending += [M[hosts + word] for word in (at.N_READY_MASK, at.N_STILL, at.N_HELD, at.N_PULL_HEAD)]
    return bool(
        (M[ports + at.P_TAIL] == M[heads]).all()
        and (M[ports + at.P_SPILL_TAIL] == M[heads + at.HEAD_SPILL]).all()
        and not any(words.any() for words in pending)
        and not any(_has_pending_timer(memory, host) for host in hosts[M[hosts + at.N_HEAP_COUNT] > 0].tolist())
    )


def _has_pending_timer(memory: EngineMemory, host: int) -> bool:
    """Return True if a host's heap has an entry that is not a stale timer."""
    M, heap = memory.M, int(memory.M[host + at.N_HEAP])
    times, keys = M[heap : heap + 2 * int(M[host + at.N_HEAP_COUNT])].reshape(-1, 2).T
    record = (keys & at.MASK_KEY_SENDER) >> 2
    sends = record < memory.receivers
    armed = np.where(sends, record + at.S_ARMED, record + at.R_ARMED)
    timer = np.where(sends, record + at.S_TIMER, record + at.R_TIMER)
    flow = (record - memory.receivers) // at.RECEIVER_WORDS
    sender = np.where(sends, record, memory.senders + flow * at.SENDER_WORDS)
    is_done = sends & (M[sender + at.S_DONE] != 0)
    reused = (M[sender + at.S_ORDER] ^ keys) >> at.KEY_ORDER != 0
    stale = is_done | reused | (M[armed] != times) | (M[timer] == 0)
    return bool(((keys & 3 != at.WHAT_TIMER) | ~stale).any())


def job_snapshot(memory: EngineMemory, flows: Flows, tracks: list[Track], anchor: int) -> bytes:
    """Return the state of jobs while the network is quiet, as words. `anchor`: time of the next event."""
    M, nodes = memory.M, memory.node_base
    parts = [_timers(memory, tracks, anchor)]
    parts += flows.persistent_state(anchor)
    pulls = M[nodes + at.N_PULL_AT][M[nodes + at.N_KIND] == at.HOST]
    parts.append(M[nodes + at.N_SLOTS][M[nodes + at.N_KIND] == at.SWITCH])
    more = M[memory.port_base + at.P_MORE]
    parts += [np.maximum(pulls - anchor, 0), M[more[:, None] + np.array(PERSISTENT_PORT_WORDS)].ravel()]
    for track in tracks:
        parts += _track(memory, track, anchor)
        for loaded in track.live:
            parts += _step(memory, flows, track, loaded, anchor)
    return b"".join(np.append(part, len(part)).astype(np.int64).tobytes() for part in parts)


def _timers(memory: EngineMemory, tracks: list[Track], anchor: int) -> Ints:
    """Return the timers of programs in order: time, and process or event."""
    M, base = memory.M, int(memory.M[at.H_TIMERS])
    rows = M[base : base + at.TIMER_WORDS * int(M[at.H_TIMER_COUNT])].reshape(-1, at.TIMER_WORDS)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    timers = [(time - anchor, *_timer_target(tracks, int(key))) for time, _, key in rows.tolist()]
    return np.array(timers, dtype=np.int64).ravel()


def _timer_target(tracks: list[Track], key: int) -> tuple[int, int, int]:
    """Return a timer's key as part, step counted from the first loaded one (-1: a process), and offset there."""
    for number, track in enumerate(tracks):
        stretches = [(-1, track.processes, at.PROCESS_WORDS * len(track.part.hosts))]
        if key & 1:
            stretches = [(i, loaded.events, at.EVENT_WORDS * len(loaded.step)) for i, loaded in enumerate(track.live)]
        for step, base, words in stretches:
            if 0 <= (key >> 1) - base < words:
                return number, step, (key >> 1) - base
    return -1, -1, key


def _track(memory: EngineMemory, track: Track, anchor: int) -> list[Ints]:
    """Return the progress of processes, busy times of stations, and contents of release queues."""
    M, first = memory.M, track.handed.steps
    count = len(track.part.hosts)
    rows = M[track.processes : track.processes + at.PROCESS_WORDS * count].reshape(count, at.PROCESS_WORDS)
    left = rows[:, [at.W_END, at.W_NEXT_END]] - rows[:, [at.W_AT, at.W_NEXT]]
    stations = M[track.stations : track.stations + len(track.part.stations)]
    queues = np.array([base for _, base in sorted(track.queues.items())], dtype=np.int64)
    return [
        np.array([len(track.live), track.laid - first, *(len(operations) for operations in track.pending)]),
        rows[:, at.W_BEGUN] - first,
        left.ravel(),
        rows[:, at.W_NEXT] > 0,
        rows[:, [at.W_STARVED, at.W_SLOW, at.W_COMPUTED]].ravel(),
        np.maximum(stations - anchor, 0),
        M[queues + at.Q_COUNT],
        M[queues + at.Q_UNDER_WAY],
    ]


def _step(memory: EngineMemory, flows: Flows, track: Track, loaded: LoadedStep, anchor: int) -> list[Ints]:
    """Return the progress of a step."""
    M, n, count = memory.M, len(loaded), len(track.part.hosts)

    def since(times: Ints, none: int = -1) -> Ints:
        return np.where(times > none, times - anchor, 1)  # past times are not after the anchor

    messages = M[loaded.messages : loaded.messages + at.MESSAGE_WORDS * n].reshape(n, at.MESSAGE_WORDS)
    events = M[loaded.events : loaded.events + at.EVENT_WORDS * len(loaded.step)].reshape(-1, at.EVENT_WORDS)
    waits = (events[:, at.E_NEEDS] != at.FIRED) & (events[:, at.E_WAITER] > 0)
    book = flows.book.rows(loaded.first, n)
    notes = M[loaded.notes : loaded.notes + NOTE_COLUMNS * count].reshape(count, NOTE_COLUMNS)
    return [
        np.array([loaded.first - flows.book.count, M[loaded.left], M[loaded.left + 2]]),
        since(M[[loaded.left + 1, loaded.left + at.LEFT_SINCE]], 0),
        events[:, at.E_NEEDS],
        np.where(waits, events[:, at.E_WAITER] - track.processes, -1),
        since(messages[:, at.G_READY]),
        since(messages[:, at.G_RELEASED]),
        messages[:, at.G_FLOW] > 0,
        book[:, COMPARED_LOG_WORDS].ravel(),
        since(book[:, at.B_END]),
        since(notes[:, :-1]).ravel(),
        notes[:, -1],
    ]
