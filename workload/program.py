"""Declares the data types of a program, which holds the hosts' computing and messages with their dependencies.

A job's behaviour does not depend on the speed of its network, only on what has arrived. So it can be written down
beforehand, as a graph of events:

* every message is one event: it *fires* when the message has been delivered at its destination;
* other events fire when all events that they need have fired, or when a process fires them;
* an event may take work first: once it has all that it needs, it occupies a *station* of its host (a server's adder),
  first come first served, for its effort, and then fires;
* when an event fires, the messages that it posts become ready at its host, in order, and the events after it count it,
  in order: if one of them fires as a result, so do all its consequences, before the next one counts.

*Processes* have a course in time: a worker that computes, waits for events, and fires events; traffic that fires events
at given times.

All needs of an event are at its own host, so hosts can run their parts of a program separately, connected by the
messages only. Times are integer picoseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from gradwire.scenarios.arrays import Flags, Floats, Ints
from gradwire.workload.csr import CsrLists

COMPUTE, WAIT, FIRE, UNTIL, NOTE = range(5)
"""Operations of a process; see `Operation`."""

START, FORWARD_END, BACKWARD_END, END = range(4)
"""Times recorded by NOTE."""


TIE_DRAW_STEPS = 5
"""Steps of a job in which ties between packets of jobs at the same picosecond are broken by absolute time, as those of
traffic always are. Later steps use the time since the first worker began the step, so that equal steps can have equal
outcomes: a long run has seen ties broken in several ways by then (our choice)."""


class Operation(NamedTuple):
    """The next operation of a process.

    COMPUTE  `value` picoseconds pass.
    WAIT     until event `value` has fired.
    FIRE     event `value` (counts as one of those that it needs).
    UNTIL    the clock shows `value` picoseconds since the beginning.
    NOTE     the time now is the START, FORWARD_END, BACKWARD_END or END (`value`) of `iteration`.
    """

    operation: int
    value: int
    iteration: int = -1


@dataclass(frozen=True)
class Process:
    """Sequential operations at one host. `job` is an index into `Program.tables`, `worker` its number in that job, -1
    for traffic and for a job's other processes, such as communication threads.

    A process does not stop for events that have already fired: it computes in one stretch up to the next step that is
    neither COMPUTE nor WAIT if all events until there have fired.

    `compute` : picoseconds spent computing in every iteration, for the table of iterations.
    """

    host: int
    job: int
    worker: int
    steps: tuple[Operation, ...]
    compute: tuple[int, ...] = ()


class MessageColumns(NamedTuple):
    """Common properties of the messages of one job or traffic.

    name : of the job or traffic.
    transport : index into the scenario's transports.
    order : "fifo", at once; or "layer": a host releases ready messages by `rank`, then by readiness, while fewer than
        `credit` bytes of its messages are in flight (a larger message goes alone).
    credit : bytes; 0 with "fifo".
    apart : True if the credit is per destination, with a queue for each.
    is_job : False for traffic, which starts without the hosts' software latency.
    element_bytes : of the values in its messages; of the widest type if they differ.
    trace : number of the trace of the gradients; -1 for traffic.
    buckets : tensors of every bucket in bucket order, if tensors are gathered into buckets; a message then carries a
        part of bucket `part` // `segments`.
    segments : segments of a bucket.
    slices : first element and number of elements of every bucket, if buckets are slices of tensors.
    """

    name: str
    transport: int
    order: str
    credit: int
    is_job: bool
    element_bytes: int
    trace: int = -1
    buckets: tuple[tuple[int, ...], ...] = ()
    segments: int = 1
    apart: bool = False
    slices: tuple[tuple[int, int], ...] = ()


class PacketImportance(Sequence[Flags | bool | None]):
    """Important packets of messages: per message None (as its transport sends), True, False, or bool[packets].

    patterns : the distinct bool[packets].
    pattern : int64[n]: index of a message's pattern, or AS_SENT, ALL, NONE.
    """

    AS_SENT, ALL, NONE = -1, -2, -3
    _PLAIN = (None, None, True, False)  # by -pattern

    def __init__(self, patterns: Sequence[Flags], pattern: Ints) -> None:
        self.patterns, self.pattern = patterns, pattern

    def __len__(self) -> int:
        return len(self.pattern)

    def __getitem__(self, index: Any) -> Any:  # no slices
        which = int(self.pattern[index])
        return self.patterns[which] if which >= 0 else self._PLAIN[-which]


@dataclass(frozen=True, eq=False)
class Messages:
    """One row per message, in columns int64[n] unless stated otherwise.

    table : index into `Program.tables`.
    kind : index into `gradwire.result_store.table_schema.KINDS`.
    iteration, tensor, layer, part : as in the Result's table of messages.
    src, dst : nodes (`Network.names`).
    nbytes, priority : bytes; the switch queue.
    bound : float64; maximum share of the bytes that may be lost.
    rank : order of release if `order` is "layer": the layer.
    captured : index of the trace's iteration with the sender's own gradients, or -1 (none of them included).
    first : the first of its elements, in its tensor (or in its bucket).
    important : per message True (all packets important), False (none), or bool[packets].
    share : float64; its own part of a loss budget, always allowed; up to `bound` it may also use the unused part of
        earlier messages with the same `pool` and ends. Default: `bound`.
    pool : number of the budget, lowest bit: direction, forth or back; 0 (default): none.
    turn : sequence number among messages with the same content, for rotations.
    """

    table: Ints
    kind: Ints
    iteration: Ints
    tensor: Ints
    layer: Ints
    part: Ints
    src: Ints
    dst: Ints
    nbytes: Ints
    priority: Ints
    bound: Floats
    rank: Ints
    captured: Ints
    first: Ints
    important: Sequence[Any]
    share: Floats = None  # type: ignore[assignment]
    pool: Ints = None  # type: ignore[assignment]
    turn: Ints = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, value in (("share", self.bound), ("pool", np.zeros_like(self.src)), ("turn", self.iteration)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.src)


class ProcessOperations(NamedTuple):
    """A process's operations in one step: rows of (operation, value, iteration), see `Operation`. Events are counted
    through all steps of the part, so that a process can wait for those of an earlier step."""

    process: int
    operations: Ints


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a part: an iteration of a job, or a batch of flows. Events are counted from its first; the first n
    are the deliveries of its n messages.

    needs, host, station, effort : int64[events], as in `Program`; stations are counted through the part. Default: no
        station, no effort.
    after, posts : as in `Program`.
    begins : int64[n], or None: the picoseconds at which a message enters its host's NIC by itself, -1 if an event posts
        it.
    fans : int64[n], or None: the number of a message's aggregation group, -1 for none. Messages of a group carry parts
        of one sum to one host, or one sum to several hosts, and switches sum or multicast them.
    settles : int64[n], or None: the event that counts the end of a message at its sender, -1 for none.
    contents : callback that returns `sums` (as `CsrLists`) and `own` (bool[n]) of `Program`; None for traffic.
    """

    messages: Messages
    needs: Ints
    host: Ints
    after: CsrLists
    posts: CsrLists
    station: Ints = None  # type: ignore[assignment]
    effort: Ints = None  # type: ignore[assignment]
    courses: tuple[ProcessOperations, ...] = ()
    begins: Ints | None = None
    fans: Ints | None = None
    contents: Callable[[], tuple[CsrLists, Flags]] | None = None
    settles: Ints | None = None

    def __post_init__(self) -> None:
        for name, value in (("station", -1), ("effort", 0)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(len(self.needs), value, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.needs)


class Repeats(NamedTuple):
    """Equal steps of a part: those from `first` to `last` whose numbers differ by a multiple of `period`. They differ
    only in the numbers of their iterations, and in rotations.

    why : reason for no equal steps; then `period` is 0.
    varies : description of random differences between them, if any: then they are equal on average only.
    """

    period: int = 0
    first: int = 0
    last: int = -1
    why: str = ""
    varies: str = ""


class StepSkip(NamedTuple):
    """Skipped steps of a part, whose outcome is known, and the number of their events."""

    steps: int
    events: int


class SkippingIterator(Protocol):
    """An iterator over steps that can skip some."""

    def __next__(self) -> Step: ...

    def jump(self, jump: StepSkip) -> None:
        """Skip steps, which are all equal to those some periods before."""


NO_REPEATS = Repeats(why="it is not a job")


@dataclass(frozen=True, eq=False)
class ProgramPart:
    """The steps of one job or traffic.

    hosts, workers : int64[processes]: the node of every process, and its worker number: 0, 1, ..., then -1 for
        processes that are not workers.
    stations : int64[stations], their nodes.
    steps : return a new iterator, which creates steps on demand; if some are equal it is a `SkippingIterator`.
    repeats : the equal steps.
    reach : number of earlier steps whose events the processes of a step may wait for.
    """

    table: MessageColumns
    hosts: Ints
    workers: Ints
    stations: Ints
    steps: Callable[[], Iterator[Step]]
    repeats: Repeats = NO_REPEATS
    reach: int = 1


@dataclass(frozen=True, eq=False)
class Program:
    """All parts together; see the module's docstring. Events 0 .. n - 1 are the deliveries of the n messages.

    needs : int64[events], the firings that an event waits for; 1 for messages (their delivery).
    host : int64[events], the node at which an event happens.
    after : per event the events that count it, in CSR form: those of event e are `after[1][after[0][e] :
        after[0][e + 1]]`.
    posts : the same for the messages that an event posts.
    station, effort : int64[events]; the station (numbered per host) is -1 if firing takes no work.
    sums : per message the messages whose received content it carries, in this order after the sender's own gradient, if
        `own` is true: elements in common are added, or replaced by those of an "all_gather"; lost ones count as zero.
        Empty for a plain gradient, None for traffic.
    own : per message True if it contains the sender's own gradient.
    """

    tables: tuple[MessageColumns, ...]
    messages: Messages
    needs: Ints
    host: Ints
    after: tuple[Ints, Ints]
    posts: tuple[Ints, Ints]
    station: Ints
    effort: Ints
    processes: tuple[Process, ...]
    sums: Sequence[Any] = field(default_factory=list)
    own: Sequence[bool] = field(default_factory=list)

    def workers(self) -> dict[tuple[int, int], int]:
        """Return (job, host) -> the worker of the job on that host."""
        return {(item.job, item.host): item.worker for item in self.processes if item.worker >= 0}

    @property
    def hosts(self) -> list[int]:
        """Nodes with processes or messages, ascending."""
        used = {process.host for process in self.processes}
        return sorted(used | set(self.messages.src.tolist()) | set(self.messages.dst.tolist()))
