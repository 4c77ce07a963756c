"""Detects that a network is quiet, and takes comparable snapshots of its jobs' state, for fast-forward.

A network is quiet when no packet is on a link or in a queue and no event is pending, so that only persistent state
outlives the moment (see `FastForward`). The state of jobs is expressed in numbers that do not depend on positions in
memory, with times relative to a moment and messages and steps relative to current counts: equal snapshots evolve
equally.
"""

from __future__ import annotations

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Host, LinkHead, Node, Port, PortExtra, Switch
from gradwire.jit.records.programs import Event, LogRow, Process, ProgramMessage, ReleaseQueue, StepCount, TimerEntry
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.program.completed_step import NOTE_COLUMNS
from gradwire.sim.engine.program.loaded_step import LoadedStep
from gradwire.sim.engine.program.track import Track

PERSISTENT_PORT_WORDS = (*range(PortExtra.deficit.offset, PortExtra.deficit.offset + 8), PortExtra.turn.offset)
"""Words of a port that outlive a quiet moment: the turns of its classes."""
COMPARED_LOG_WORDS = (
    LogRow.status.offset,
    LogRow.received.offset,
    LogRow.sent.offset,
    LogRow.retransmitted.offset,
    LogRow.marked.offset,
    LogRow.trimmed.offset,
    LogRow.timeouts.offset,
)
"""Words of a message's row in the message log other than times."""


def is_quiet(memory: EngineMemory, flows: Flows) -> bool:
    """Return True if nothing is under way in a network none of whose messages has records."""
    state, ports, nodes = memory.state, memory.port_base, memory.node_base
    port_records = view(Port, state, ports)
    heads, more = port_records.consumer.base, port_records.extra.base
    hosts = nodes[view(Node, state, nodes).kind == at.HOST]
    pending = [
        port_records.queue,
        *(
            state[more + word]
            for word in (PortExtra.pause_due.offset, PortExtra.pause_wanted.offset, PortExtra.paused.offset)
        ),
    ]
    pending += [
        state[hosts + word]
        for word in (Host.ready_mask.offset, Host.is_paused.offset, Host.held.offset, Host.pull_head.offset)
    ]
    return bool(
        (port_records.sent == state[heads]).all()
        and (port_records.spill_tail == view(LinkHead, state, heads).spill_taken).all()
        and not any(words.any() for words in pending)
        and not any(
            _has_pending_timer(memory, host) for host in hosts[view(Host, state, hosts).timer_count > 0].tolist()
        )
    )


def _has_pending_timer(memory: EngineMemory, host: int) -> bool:
    """Return True if a host's heap has an entry that is not a stale timer."""
    state, heap = memory.state, int(view(Host, memory.state, host).timer_heap)
    times, keys = state[heap : heap + 2 * int(view(Host, state, host).timer_count)].reshape(-1, 2).T
    record = (keys & at.MASK_KEY_SENDER) >> 2
    sends = record < memory.receivers
    armed = np.where(sends, record + Sender.armed.offset, record + Receiver.armed.offset)
    timer = np.where(sends, record + Sender.timer.offset, record + Receiver.timer.offset)
    flow = (record - memory.receivers) // Receiver.WORDS
    sender = np.where(sends, record, memory.senders + flow * Sender.WORDS)
    sender_record = view(Sender, state, sender)
    is_done = sends & (sender_record.is_done != 0)
    reused = (sender_record.order ^ keys) >> at.KEY_ORDER != 0
    stale = is_done | reused | (state[armed] != times) | (state[timer] == 0)
    return bool(((keys & 3 != at.WHAT_TIMER) | ~stale).any())


def job_snapshot(memory: EngineMemory, flows: Flows, tracks: list[Track], anchor: int) -> bytes:
    """Return the state of jobs while the network is quiet, as words. `anchor`: time of the next event."""
    state, nodes = memory.state, memory.node_base
    parts = [_timers(memory, tracks, anchor)]
    parts += flows.persistent_state(anchor)
    node_records = view(Node, state, nodes)
    pulls = view(Host, state, nodes).next_pull[node_records.kind == at.HOST]
    parts.append(view(Switch, state, nodes).free_slots[node_records.kind == at.SWITCH])
    more = view(Port, state, memory.port_base).extra.base
    parts += [np.maximum(pulls - anchor, 0), state[more[:, None] + np.array(PERSISTENT_PORT_WORDS)].ravel()]
    for track in tracks:
        parts += _track(memory, track, anchor)
        for loaded in track.live:
            parts += _step(memory, flows, track, loaded, anchor)
    return b"".join(np.append(part, len(part)).astype(np.int64).tobytes() for part in parts)


def _timers(memory: EngineMemory, tracks: list[Track], anchor: int) -> Ints:
    """Return the timers of programs in order: time, and process or event."""
    state, base = memory.state, int(memory.state[State.timers.offset])
    rows = state[base : base + TimerEntry.WORDS * int(state[State.timer_count.offset])].reshape(-1, TimerEntry.WORDS)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    timers = [(time - anchor, *_timer_target(tracks, int(key))) for time, _, key in rows.tolist()]
    return np.array(timers, dtype=np.int64).ravel()


def _timer_target(tracks: list[Track], key: int) -> tuple[int, int, int]:
    """Return a timer's key as part, step counted from the first loaded one (-1: a process), and offset there."""
    for number, track in enumerate(tracks):
        stretches = [(-1, track.processes, Process.WORDS * len(track.part.hosts))]
        if key & 1:
            stretches = [(i, loaded.events, Event.WORDS * len(loaded.step)) for i, loaded in enumerate(track.live)]
        for step, base, words in stretches:
            if 0 <= (key >> 1) - base < words:
                return number, step, (key >> 1) - base
    return -1, -1, key


def _track(memory: EngineMemory, track: Track, anchor: int) -> list[Ints]:
    """Return the progress of processes, busy times of stations, and contents of release queues."""
    state, first = memory.state, track.handed.steps
    count = len(track.part.hosts)
    rows = state[track.processes : track.processes + Process.WORDS * count].reshape(count, Process.WORDS)
    left = (
        rows[:, [Process.schedule_end.offset, Process.next_schedule_end.offset]]
        - rows[:, [Process.operation.offset, Process.next_schedule.offset]]
    )
    stations = state[track.stations : track.stations + len(track.part.stations)]
    queues = np.array([base for _, base in sorted(track.queues.items())], dtype=np.int64)
    release_queues = view(ReleaseQueue, state, queues)
    return [
        np.array([len(track.live), track.laid - first, *(len(operations) for operations in track.pending)]),
        rows[:, Process.finished_parts.offset] - first,
        left.ravel(),
        rows[:, Process.next_schedule.offset] > 0,
        rows[:, [Process.is_starved.offset, Process.slowness.offset, Process.computed.offset]].ravel(),
        np.maximum(stations - anchor, 0),
        release_queues.count,
        release_queues.under_way,
    ]


def _step(memory: EngineMemory, flows: Flows, track: Track, loaded: LoadedStep, anchor: int) -> list[Ints]:
    """Return the progress of a step."""
    state, n, count = memory.state, len(loaded), len(track.part.hosts)

    def since(times: Ints, none: int = -1) -> Ints:
        return np.where(times > none, times - anchor, 1)  # past times are not after the anchor

    messages = state[loaded.messages : loaded.messages + ProgramMessage.WORDS * n].reshape(n, ProgramMessage.WORDS)
    events = state[loaded.events : loaded.events + Event.WORDS * len(loaded.step)].reshape(-1, Event.WORDS)
    waits = (events[:, Event.needs.offset] != at.FIRED) & (events[:, Event.waiter.offset] > 0)
    book = flows.book.rows(loaded.first, n)
    notes = state[loaded.notes : loaded.notes + NOTE_COLUMNS * count].reshape(count, NOTE_COLUMNS)
    return [
        np.array([loaded.first - flows.book.count, state[loaded.left], state[loaded.left + 2]]),
        since(state[[loaded.left + 1, loaded.left + StepCount.since.offset]], 0),
        events[:, Event.needs.offset],
        np.where(waits, events[:, Event.waiter.offset] - track.processes, -1),
        since(messages[:, ProgramMessage.ready_at.offset]),
        since(messages[:, ProgramMessage.released_at.offset]),
        messages[:, ProgramMessage.flow.offset] > 0,
        book[:, COMPARED_LOG_WORDS].ravel(),
        since(book[:, LogRow.end.offset]),
        since(notes[:, :-1]).ravel(),
        notes[:, -1],
    ]
