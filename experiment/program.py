"""Program: what the hosts of a scenario do, as plain data - who computes how long, and which message follows from what.

A job's behaviour does not depend on how fast its network is, only on what has arrived. So it can be written down
beforehand, as a graph of events:

* every message is one event: it *fires* when the message has been delivered at its destination;
* other events fire when all events that they need have fired, or when a process fires them;
* an event may take work first: once it has all that it needs, it occupies a *station* of its host (a server's
  adder), first come first served, for its effort, and fires when that is over;
* when an event fires, the messages that it posts become ready at its host, in order, and the events after it
  count it, in order: one of them that fires thereby does so, with all that follows from it, before the next counts.

*Processes* are what has a course in time: a worker that computes, waits for events, and fires events; traffic that
fires events at given times.

Everything an event needs happens at its own host, so that hosts can run their parts of a program on their own, with
nothing between them but the messages. Times are integer picoseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import Flags, Ints

COMPUTE, WAIT, FIRE, UNTIL, NOTE = range(5)
"""What a process does; see `Operation`."""

START, FORWARD_END, BACKWARD_END, END = range(4)
"""What NOTE notes."""


DRAWN = 5
"""Steps of a job in which packets of jobs that arrive at the same picosecond are put in an order that goes by what time
it is, as those of traffic always are. In later ones it goes by the time since the first worker began the step, so that
steps that begin alike may go alike: a long run has seen ties fall in several ways by then (our choice)."""


class Operation(NamedTuple):
    """What a process does next, and what it is about.

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
    """Steps, one after the other, at one host. `job` is an index into `Program.tables`, `worker` its number in that
    job, -1 for traffic and for what a job has besides workers, such as communication threads.

    A process does not stop for what is there already: where all events that it waits for up to the next step that is
    neither COMPUTE nor WAIT have fired, it computes in one stretch.

    `compute` : picoseconds spent computing in every iteration, as the table of iterations counts it.
    """

    host: int
    job: int
    worker: int
    steps: tuple[Operation, ...]
    compute: tuple[int, ...] = ()


class Table(NamedTuple):
    """What the messages of one job or traffic have in common.

    name : of the job or traffic.
    transport : index into the scenario's transports.
    order : "fifo", at once; or "layer": a host releases ready messages by `rank`, then by readiness, while fewer than
        `credit` bytes of its messages are under way (a message larger than that goes alone).
    credit : bytes; 0 with "fifo".
    apart : whether the credit is for each destination by itself, so that a host has a queue for each.
    is_job : traffic starts without the hosts' software latency.
    element_bytes : of the values that its messages carry; where they differ, of the widest.
    trace : number of the trace whose gradients they are; -1 for traffic.
    buckets : tensors in the order in which they lie in every bucket, where tensors are gathered into buckets; a message
        then carries a part of bucket `part` // `segments`.
    segments : into how many parts a bucket is cut.
    slices : of every bucket, where they are parts of tensors, its first element in its tensor and how many they are.
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


class Importance(Sequence[Flags | bool | None]):
    """Which packets of messages are important: per message None (whatever its transport sends), True, False, or
    bool[packets].

    patterns : the distinct bool[packets].
    pattern : int64[n]: which of them a message has, or AS_SENT, ALL, NONE.
    """

    AS_SENT, ALL, NONE = -1, -2, -3
    _PLAIN = (None, None, True, False)  # by -pattern

    def __init__(self, patterns: Sequence[Flags], pattern: Ints) -> None:
        self.patterns, self.pattern = patterns, pattern

    def __len__(self) -> int:
        return len(self.pattern)

    def __getitem__(self, index: Any) -> Any:  # of a slice there is none
        which = int(self.pattern[index])
        return self.patterns[which] if which >= 0 else self._PLAIN[-which]


@dataclass(frozen=True, eq=False)
class Messages:
    """One row per message, in columns int64[n] unless said otherwise.

    table : index into `Program.tables`.
    kind : index into `gradwire.scenarios.result.KINDS`.
    iteration, tensor, layer, part : as in the Result's table of messages.
    src, dst : nodes (`Network.names`).
    nbytes, priority : bytes; the switch queue.
    bound : float64; the share of the bytes that may be lost, never more.
    rank : order of release where `order` is "layer": the layer.
    captured : index of the trace's iteration whose gradients the sender's own part is, or -1 (no such part).
    first : the first of its elements, in its tensor (or in its bucket).
    important : per message True (all packets important), False (none), or bool[packets].
    share : float64; of its bytes, its own part of a budget: it may lose so much in any case, and up to `bound` what
        earlier ones with the same `pool` and ends have not lost of theirs. Unless given, `bound`.
    pool : number of the budget, lowest bit: the way, forth or back; 0 (unless given): none.
    turn : which one it is of the messages that carry the same, one after the other; what rotates, rotates by it.
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
    bound: NDArray[np.float64]
    rank: Ints
    captured: Ints
    first: Ints
    important: Sequence[Any]
    share: NDArray[np.float64] = None  # type: ignore[assignment]
    pool: Ints = None  # type: ignore[assignment]
    turn: Ints = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, value in (("share", self.bound), ("pool", np.zeros_like(self.src)), ("turn", self.iteration)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.src)


Lists = tuple[Ints, Ints]
"""Lists of numbers, one after the other, as (first, list): those of i are `list[first[i] : first[i + 1]]`."""


class Course(NamedTuple):
    """What a process does in one step: rows of (operation, value, iteration), see `Operation`. Events are counted
    through all steps of the part, so that a process can wait for those of an earlier step."""

    process: int
    operations: Ints


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a part: an iteration of a job, or a batch of flows. Events are counted from its first; the first n
    are the deliveries of its n messages.

    needs, host, station, effort : int64[events], as in `Program`; stations are counted through the part.
    after, posts : as in `Program`.
    begins : int64[n], or None: the picoseconds at which a message enters its host's interface by itself, -1 where an
        event posts it.
    fans : int64[n], or None: the number of the fan that a message is of, -1 for none. Messages of one carry parts of
        one sum to one host, or one sum from it to others, and switches that sum add them up or make them of one.
    settles : int64[n], or None: the event that counts when the sender of a message is done, -1 for none.
    contents : asked for `sums` (as `Lists`) and `own` (bool[n]) of `Program`; None for traffic.
    """

    messages: Messages
    needs: Ints
    host: Ints
    after: Lists
    posts: Lists
    station: Ints
    effort: Ints
    courses: tuple[Course, ...] = ()
    begins: Ints | None = None
    fans: Ints | None = None
    contents: Callable[[], tuple[Lists, Flags]] | None = None
    settles: Ints | None = None

    def __len__(self) -> int:
        return len(self.needs)


class Repeats(NamedTuple):
    """Which steps of a part are alike: those from `first` to `last` whose numbers differ by a multiple of `period`.
    They differ in the numbers of their iterations alone, and in what rotates by these.

    why : why none are, in words; then `period` is 0.
    varies : in words, what of them is drawn anew for each, if anything is: then they are alike on average only.
    """

    period: int = 0
    first: int = 0
    last: int = -1
    why: str = ""
    varies: str = ""


class Jump(NamedTuple):
    """Steps of a part that are left out, because what comes of them is known, and how many events those have."""

    steps: int
    events: int


class Jumping(Protocol):
    """An iterator over steps that may leave some out."""

    def __next__(self) -> Step: ...

    def jump(self, jump: Jump) -> None:
        """Go on so many steps later, all of which are like those so many periods before."""


NEVER = Repeats(why="it is no job")


@dataclass(frozen=True, eq=False)
class Part:
    """What one job or traffic does.

    hosts, workers : int64[processes]: the node of every process, and the number of the worker that it is: 0, 1, ...,
        and behind them -1 for what is none.
    stations : int64[stations], their nodes.
    steps : a new iterator over the steps; each is made when it is asked for. Where some are alike it is a `Jumping`.
    repeats : which of them are.
    reach : processes in a step may wait for events of so many steps before it, and of no others.
    """

    table: Table
    hosts: Ints
    workers: Ints
    stations: Ints
    steps: Callable[[], Iterator[Step]]
    repeats: Repeats = NEVER
    reach: int = 1


@dataclass(frozen=True, eq=False)
class Program:
    """Everything; see the module's docstring. Events 0 .. n - 1 are the deliveries of the n messages.

    needs : int64[events], how many firings an event waits for; 1 for messages (their delivery).
    host : int64[events], the node at which an event happens.
    after : per event the events that count it, as (first, list): those of event e are `after[1][after[0][e] :
        after[0][e + 1]]`.
    posts : the same for the messages that an event posts.
    station, effort : int64[events]; the station (a number of the host's own) is -1 where firing takes no work.
    sums : per message the messages whose arrived content it carries, in this order after the sender's own gradient, if
        `own` says so: where their elements are the message's, they are added up, or those of an "all_gather" put in the
        place of what was there; what was lost counts as zero. Empty for those that carry a gradient as it is, None for
        those of traffic.
    own : per message whether the sender's own gradient is part of what it carries.
    """

    tables: tuple[Table, ...]
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
        """(job, host) -> the worker of the job on that host."""
        return {(each.job, each.host): each.worker for each in self.processes if each.worker >= 0}

    @property
    def hosts(self) -> list[int]:
        """Nodes that do something, ascending."""
        used = {process.host for process in self.processes}
        return sorted(used | set(self.messages.src.tolist()) | set(self.messages.dst.tolist()))
