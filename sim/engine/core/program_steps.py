"""The program player carries out jobs' reactions to deliveries and timers (compute, wait, release messages) between two
windows.

A program is an event graph (`gradwire.workload.program`). Its events, the messages they post, processes, stations and
release queues are records in the state (written by `gradwire.sim.engine.program.track`). After every window in which a
message of a program was delivered, a sender has learned that it is done, or a timer of a program is due, one thread
plays all of that in order of time. This is possible afterwards because what follows enters the network one software
latency later at the earliest, and a window is not longer than that.

At one time, events of the network come first, by message, senders before receivers; then timers, in the order in which
they were set. A process that an event wakes continues by a timer that is due at once.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.constants import (
    DELIVERED,
    FAILED_LATE,
    FIRED,
    FOREVER,
    KEY_ORDER,
    O_BEGIN,
    O_COMPUTE,
    O_FIRE,
    O_NOTE,
    O_UNTIL,
    O_WAIT,
    SLOW_UNIT,
)
from gradwire.jit.records.flows import receiver_at, sender_at
from gradwire.jit.records.header import DeliveryEntry, State, Thread
from gradwire.jit.records.programs import (
    Event,
    Operation,
    Process,
    ProgramMessage,
    ReleaseEntry,
    ReleaseQueue,
    StepCount,
    TimerEntry,
)
from gradwire.sim.engine.program.flow_setup import open_message
from gradwire.sim.engine.program.flow_teardown import note


@njit
def _entry(state: State, heap: int, index: int) -> TimerEntry:
    """Return an entry of a heap."""
    return TimerEntry(state, heap + TimerEntry.WORDS * index)


@njit
def _put(entry: TimerEntry, time: int, number: int, key: int) -> None:
    """Write an entry."""
    entry.time = time
    entry.number = number
    entry.key = key


@njit
def _add(state: State, heap: int, count: int, time: int, number: int, key: int) -> None:
    """Add to a heap, lowest time and number first, that has `count` entries."""
    i = count
    while i > 0:
        parent = (i - 1) >> 1
        other = _entry(state, heap, parent)
        if other.time < time or (other.time == time and other.number < number):
            break
        _put(_entry(state, heap, i), other.time, other.number, other.key)
        i = parent
    _put(_entry(state, heap, i), time, number, key)


@njit
def _drop(state: State, heap: int, count: int) -> None:
    """Remove the first entry; `count` are left."""
    last = _entry(state, heap, count)
    time, number, key = last.time, last.number, last.key
    i = 0
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        entry = _entry(state, heap, child)
        if child + 1 < count:
            other = _entry(state, heap, child + 1)
            if other.time < entry.time or (other.time == entry.time and other.number < entry.number):
                child += 1
                entry = other
        if time < entry.time or (time == entry.time and number < entry.number):
            break
        _put(_entry(state, heap, i), entry.time, entry.number, entry.key)
        i = child
    if count:
        _put(_entry(state, heap, i), time, number, key)


@njit
def set_timer(state: State, time: int, key: int) -> None:
    """Set a timer of a program: `key` is the base of a process << 1, or of an event << 1 | 1. Timers of equal times
    fire in the order in which they were set."""
    count = state.timer_count
    state.timer_count = count + 1
    state.timers_set += 1
    _add(state, state.timers, count, time, state.timers_set, key)
    state.next_timer = _entry(state, state.timers, 0).time


@njit
def _drop_timer(state: State) -> None:
    """Remove the first timer."""
    count = state.timer_count - 1
    state.timer_count = count
    _drop(state, state.timers, count)
    state.next_timer = _entry(state, state.timers, 0).time if count else FOREVER


@njit
def _tell(state: State, now: int) -> None:
    """Return to Python before a host could react to an event at `now`."""
    state.earliest_python_event = min(state.earliest_python_event, now)


@njit
def _release(state: State, message: ProgramMessage, now: int) -> None:
    """Release a message: it starts one software latency later."""
    begin = now + state.host_latency
    message.released_at = begin
    if not open_message(state, message):
        _tell(state, now)  # Python reports the missing room


@njit
def _release_entry(queue: ReleaseQueue, index: int) -> ReleaseEntry:
    """Return an entry of a queue's heap."""
    return ReleaseEntry(queue, queue.heap + 2 * index)


@njit
def _move(queue: ReleaseQueue, source: int, index: int) -> None:
    """Copy an entry of a queue's heap."""
    entry, other = _release_entry(queue, index), _release_entry(queue, source)
    entry.rank = other.rank
    entry.message = other.message


@njit
def _fill(state: State, queue: ReleaseQueue, now: int) -> None:
    """Release what the credit of a queue allows; a message larger than the credit goes alone."""
    while queue.count:
        message = _release_entry(queue, 0).message
        if queue.under_way and queue.under_way + message.variant.nbytes > queue.credit:
            return
        count = queue.count - 1
        queue.count = count
        last = _release_entry(queue, count)
        rank, other = last.rank, last.message
        i = 0
        while True:
            child = 2 * i + 1
            if child >= count:
                break
            if child + 1 < count and _release_entry(queue, child + 1).rank < _release_entry(queue, child).rank:
                child += 1
            if rank <= _release_entry(queue, child).rank:
                break
            _move(queue, child, i)
            i = child
        entry = _release_entry(queue, i)
        entry.rank = rank
        entry.message = other
        queue.under_way += message.variant.nbytes
        _release(state, message, now)


@njit
def _ready(state: State, message: ProgramMessage, now: int) -> None:
    """Release a message that is ready at its host, or queue it for release, by rank and then by readiness."""
    message.ready_at = now
    queue = message.queue
    if not queue:
        _release(state, message, now)
        return
    rank = (message.rank << KEY_ORDER) | queue.offered
    queue.offered += 1
    i = queue.count
    queue.count = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if _release_entry(queue, parent).rank <= rank:
            break
        _move(queue, parent, i)
        i = parent
    entry = _release_entry(queue, i)
    entry.rank = rank
    entry.message = message
    _fill(state, queue, now)


@njit
def _begin_firing(state: State, event: Event, now: int) -> None:
    """Let an event happen: the messages that it posts become ready, and the process that waits for it continues."""
    event.needs = FIRED
    event.counted = 0
    posts = event.posts
    for i in range(event.post_count):
        _ready(state, ProgramMessage(state, posts[i]), now)
    if event.waiter:
        set_timer(state, now, event.waiter.base << 1)
        event.waiter = 0


@njit
def _fire(state: State, event: Event, now: int) -> None:
    """Let an event happen, with all that follows from it at once, depth first. An event that counts it happens with all
    that follows from that before the next one counts."""
    event.parent = 0
    _begin_firing(state, event, now)
    while event:
        if event.counted == event.dependent_count:
            event = event.parent
            continue
        following = Event(state, event.dependents[event.counted])
        event.counted += 1
        following.needs -= 1
        if following.needs == 0 and not _works(state, following, now):
            following.parent = event
            event = following
            _begin_firing(state, event, now)


@njit
def _works(state: State, event: Event, now: int) -> bool:
    """Return True if an event that has all it needs takes work first, which its station does after earlier work."""
    if event.resource == 0:
        return False
    busy_until = Words(state, event.resource)
    end = max(now, busy_until[0]) + event.effort
    busy_until[0] = end
    set_timer(state, end, event.base << 1 | 1)
    return True


@njit
def _count(state: State, event: Event, now: int) -> None:
    """Count one of the things that an event needs."""
    event.needs -= 1
    if event.needs == 0 and not _works(state, event, now):
        _fire(state, event, now)


@njit
def _proceed(state: State, process: Process, now: int) -> None:
    """Continue a process until it computes, waits, or has come to the end of its known operations."""
    while True:
        at = process.operation
        if at == process.schedule_end:
            process.part_times[process.finished_parts & 3] = now
            process.finished_parts += 1
            _tell(state, now)
            if process.next_schedule == 0:
                process.is_starved = 1
                process.starved_at = now
                state.starved_process = process.base
                return
            process.operation = process.next_schedule
            process.schedule_end = process.next_schedule_end
            process.next_schedule = 0
            continue
        operation = Operation(state, at)
        value = operation.value
        process.operation = at + Operation.WORDS
        if operation.kind == O_COMPUTE:
            if process.slowness != SLOW_UNIT:
                value = value // SLOW_UNIT * process.slowness + (value % SLOW_UNIT) * process.slowness // SLOW_UNIT
            process.computed += value
            set_timer(state, now + value, process.base << 1)
            return
        if operation.kind == O_WAIT:
            if value and Event(state, value).needs != FIRED:
                Event(state, value).waiter = process
                return
        elif operation.kind == O_FIRE:
            _count(state, Event(state, value), now)
        elif operation.kind == O_UNTIL:
            if value > now:
                set_timer(state, value, process.base << 1)
                return
        elif operation.kind == O_NOTE:
            state.words[value] = now
        elif operation.kind == O_BEGIN:
            if state.words[value] == 0:
                state.words[value] = now
        else:
            state.words[value] = process.computed
            process.computed = 0


@njit
def _collect(state: State, threads: int) -> None:
    """Sort the new log rows of all threads by time and message; what nothing waits for is only counted. Every row is
    entered into the message log."""
    for thread_number in range(threads):
        thread = Thread(state, state.thread_records + thread_number * Thread.WORDS)
        for row in range(thread.played, thread.delivery_count):
            entry = DeliveryEntry(state, thread.deliveries + row * DeliveryEntry.WORDS)
            note(state, entry)
            flow_number = entry.flow
            receiver = receiver_at(state, flow_number)
            if receiver.deliveries_left == 0:
                continue
            step = StepCount(state, receiver.deliveries_left)
            flow = sender_at(state, flow_number)
            delivered = entry.what == DELIVERED
            if delivered:
                step.left -= 1
                step.last_delivery = max(step.last_delivery, entry.time)
                if step.left == 0:
                    _tell(state, step.last_delivery)
                if receiver.event == 0:
                    continue
            elif flow.program_message == 0:
                continue
            _add(
                state,
                state.event_heap,
                state.event_heap_count,
                entry.time,
                (flow.order >> KEY_ORDER) << 1 | delivered,
                flow_number,
            )
            state.event_heap_count += 1
        thread.played = thread.delivery_count


@njit
def _hear(state: State, flow_number: int, delivered: int, now: int) -> None:
    """Handle a delivery, or the end of a sender, which returns credit to its queue and may be an event."""
    if delivered:
        _count(state, Event(state, receiver_at(state, flow_number).event), now)
        return
    message = ProgramMessage(state, sender_at(state, flow_number).program_message)
    queue = message.queue
    if queue:
        queue.under_way -= message.variant.nbytes
        _fill(state, queue, now)
    if message.done_event:
        _count(state, message.done_event, now)


@njit
def play(state: State, end: int, threads: int) -> None:
    """Play everything before `end`. H_SOON: the earliest thing that follows in the network or here; H_TOLD: the
    earliest event that Python must know of. When a process comes to the end of its known operations (H_STARVED),
    everything stops: Python provides the next ones, and calls again before the network advances."""
    state.earliest_consequence = FOREVER
    state.earliest_python_event = FOREVER
    _collect(state, threads)
    process = Process(state, state.starved_process)
    if process:
        state.starved_process = 0
        if process.is_starved == 0:  # otherwise it has come to its end
            _proceed(state, process, process.starved_at)
    while state.starved_process == 0:
        first = _entry(state, state.event_heap, 0)
        if state.event_heap_count and first.time <= state.next_timer:
            now = first.time
            delivered = first.number & 1
            flow_number = first.key
            state.event_heap_count -= 1
            _drop(state, state.event_heap, state.event_heap_count)
            _hear(state, flow_number, delivered, now)
            continue
        now = state.next_timer
        if now >= end:
            break
        key = _entry(state, state.timers, 0).key
        _drop_timer(state)
        if key & 1:
            _fire(state, Event(state, key >> 1), now)
        else:
            _proceed(state, Process(state, key >> 1), now)
    if state.earliest_consequence < end:
        state.failure = FAILED_LATE
    state.earliest_consequence = min(state.earliest_consequence, state.next_timer)
