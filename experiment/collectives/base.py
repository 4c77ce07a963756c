"""What a collective is: an exchange of gradients, written down as the steps of a part of a program.

NumPy is imported where it is used, so that a collective can stand beside its table, which whoever reads a scenario
imports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.experiment.collectives.setting import JobSetting
from gradwire.scenarios.loss import Allowance
from gradwire.scenarios.result import KINDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gradwire.experiment.bounds import Bounds
    from gradwire.experiment.program import Course, Importance, Ints, Lists, Messages, Step


@dataclass(frozen=True, eq=False, kw_only=True)
class JobContext(JobSetting):
    """What an exchange may use of its job, beside who exchanges what.

    Attributes
    ----------
    number : of its table in the program.
    priorities : the switch queue of every tensor's packets.
    captured : (worker, iteration) -> the iteration of the trace that is replayed.
    bounds : how much messages may lose.
    seed : the scenario's.
    tagger : `gradwire.traces.messages.Tagger`, or None where the job does not tag by magnitude.
    payload : data bytes of a full packet.
    sums : whether switches have slots in which they add up packets.
    """

    number: int
    priorities: Sequence[int]
    captured: Callable[[int, int], int]
    tagger: Any
    payload: int
    bounds: Bounds
    seed: int
    sums: bool = False


class Moment(NamedTuple):
    """What a worker does when it comes to a layer or a communication: it asks for some rounds of its exchange, waits
    until one of them is over, and asks for some more."""

    asks: Sequence[int] = ()
    waits: int = -1
    then_asks: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Exchanged:
    """One iteration of an exchange.

    Attributes
    ----------
    step : its messages and events, without courses.
    fires : per worker and tensor (worker * tensors + tensor) the events that its gradient fires, in order.
    gates : int64[workers, layers + 1]: the event that a worker waits for, for each layer and, in the last column, for
        everything; -1 where there is nothing to wait for.
    forward : per worker and layer, and one place more for the end of the pass (worker * (layers + 1) + layer), the
        events that are fired when forward has come so far; None: none.
    updates : int64[workers, n, 4], what a worker does one after the other when its backward pass is over: wait for an
        event, compute a part of the captured optimiser step (so many of so many parts), and fire an event, or none, -1;
        None: nothing.
    threads : the courses of processes behind the workers' (`Exchange.threads`).
    micros : how many micro-batches an iteration has.
    early : where gradients of those before the last one are exchanged as well, the same as `fires` for each of them.
    inside : by micro-batch, whether back, and layer what a worker does when it comes there; `rounds` then has the
        events to fire and to wait for, two of int64[rounds, workers].
    called : by micro-batch and number of a communication of the trace what a worker does when it comes there.
    """

    step: Step
    fires: Lists
    gates: Ints
    forward: Lists | None = None
    updates: Ints | None = None
    threads: tuple[Course, ...] = ()
    micros: int = 1
    early: Sequence[Lists] = ()
    inside: Mapping[tuple[int, bool, int], Moment] = field(default_factory=dict)
    called: Mapping[tuple[int, int], Moment] = field(default_factory=dict)
    rounds: tuple[Ints, Ints] = ()  # type: ignore[assignment]

    def at_forward(self, place: int) -> list[int]:
        """The events that are fired at a place of `forward`."""
        if self.forward is None:
            return []
        first, events = self.forward
        return [int(event) for event in events[first[place] : first[place + 1]]]


def own_updates(reduced: Ints, parts: int, updated: Ints | None = None) -> Ints:
    """`Exchanged.updates` where every worker updates one of so many parts: after which event, int64[workers], and which
    one it fires then."""
    import numpy as np

    ones = np.ones_like(reduced)
    return np.stack((reduced, ones, parts * ones, -ones if updated is None else updated), axis=1)[:, None]


class Exchange(ABC):
    """One job's exchange of gradients.

    Attributes
    ----------
    layerwise : forward of a layer waits for this layer only; otherwise for everything.
    staleness : of how many iterations before the last one workers use the result.
    worker_optimizes : the workers run the captured optimiser step once everything is there (in a parameter
        server the servers do): layerwise, each layer's share of it before its forward step.
    slots, slots_apart : how many messages a host has under way, in all or to each other one, where the job's scheduler
        lets all go at once; 0: all of them.
    repeats : said by a class itself: iterations from the second on are alike where the same captured ones are replayed,
        but for their numbers.
    """

    layerwise = False
    staleness = 0
    worker_optimizes = False
    slots = 0
    slots_apart = True
    repeats = False

    def __init__(self, context: JobContext) -> None:
        self.context = context

    @property
    def stations(self) -> Ints:
        """The nodes of what takes time to do one thing after the other, such as a server's adder."""
        import numpy as np

        return np.zeros(0, dtype=np.int64)

    @property
    def threads(self) -> Ints:
        """The nodes of processes besides the workers, that do something at the same time, such as communicating."""
        import numpy as np

        return np.zeros(0, dtype=np.int64)

    @abstractmethod
    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        """One iteration. `ready`: int64[workers, tensors], picoseconds from its beginning at which gradients are ready
        where nothing is waited for: messages are numbered by it. `last`: nothing follows it."""

    def courses(self, iteration: int, factor: Callable[[int], float], start: int) -> tuple[Course, ...] | None:
        """What its processes do in an iteration instead of replaying the trace, events counted from the step's first;
        None: they replay it. `factor`: how many times longer a worker's computing takes than the trace says; `start`:
        picoseconds at which the job begins."""
        return None

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        """The tensors of every bucket in the order in which they lie there, and into how many parts a bucket is cut;
        nothing, and one, where tensors are not gathered into buckets."""
        return (), 1

    @property
    def parameter_buckets(self) -> int:
        """How many of the buckets, the first ones, are parameters that a pass asks for, and no gradients."""
        return 0

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """Of every bucket that is a part of one tensor, its first element there and how many they are; none where
        buckets are whole tensors."""
        return ()

    @property
    @abstractmethod
    def unit_bytes(self) -> int:
        """Bytes of the largest message."""

    @property
    @abstractmethod
    def bytes_per_iteration(self) -> int:
        """Bytes of all messages of one iteration."""


class Patterns:
    """Distinct patterns of importance, by key."""

    def __init__(self) -> None:
        self.found: list[NDArray[np.bool_]] = []
        self._number: dict[Any, int] = {}

    def of(self, key: Any, make: Callable[[], NDArray[np.bool_]]) -> int:
        """The number of a pattern; `make` makes it when its key is new."""
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.found)
            self.found.append(make())
        return number


def messages(
    context: JobContext, kind: NDArray[Any], importance: Importance, loss: Allowance, **columns: Any
) -> Messages:
    """Columns of messages of a job, those that are one number for all included. `kind`: of `KINDS`, by name or
    number."""
    import numpy as np

    from gradwire.experiment.program import Messages

    n = len(kind)
    numbers = np.asarray(kind)
    if numbers.dtype.kind == "U":
        names, which = np.unique(numbers, return_inverse=True)
        numbers = np.array([KINDS.index(name) for name in names.tolist()], dtype=np.int64)[which.reshape(-1)]
    given = {"table": context.number, "pool": loss.pool, **columns}
    full = {name: _column(value, n) for name, value in given.items()}
    what = (full[name] for name in ("src", "dst", "tensor", "part"))
    full["turn"] = full["iteration"] + _beginning(context.seed, numbers, *what)
    bound, share = (_column(each, n, "float64") for each in (loss.bound, loss.share))
    return Messages(kind=numbers, important=importance, bound=bound, share=share, **full)


def _column(value: Any, many: int, kind: str = "int64") -> NDArray[Any]:
    """A column to be read: where it is the same for all, that number alone."""
    import numpy as np

    given = np.asarray(value, dtype=kind)
    if given.ndim == 0 or (given == given[:1]).all():
        return np.broadcast_to(given if given.ndim == 0 else given[:1].copy(), many)
    return given if given.base is None else given.copy()  # a view would keep what it is of


def _beginning(seed: int, *what: Ints) -> Ints:
    """Where what rotates by iteration begins, for messages that differ in any of these: 16 bits."""
    import numpy as np

    from gradwire.components.draws import MASK, entropy_of, mix

    key: Any = np.zeros(len(what[0]), dtype=np.int64)
    for each in what:
        key = mix.py_func(key + each & MASK)
    return np.asarray(entropy_of(seed, key), dtype=np.int64)


def lists(pairs: Sequence[tuple[Any, Any]], owners: int) -> Lists:
    """The items of every owner, in the order in which they are given, as pairs of arrays: owners, and their items."""
    import numpy as np

    owner, item = (np.concatenate([np.ravel(pair[side]) for pair in pairs]) for side in (0, 1))
    order = np.argsort(owner, kind="stable")
    first = np.zeros(owners + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=owners), out=first[1:])
    return first, np.asarray(item[order], dtype=np.int64)
