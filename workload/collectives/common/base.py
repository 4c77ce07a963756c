"""`Exchange` is the base class of a job's exchange of gradients, which subclasses build as steps of a program part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.jit.limits import MAX_PACKETS
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.lazily import np
from gradwire.scenarios.loss import LossAllowance
from gradwire.topology import HostCards
from gradwire.workload.csr import CsrLists
from gradwire.workload.scheduling import Scheduling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradwire.traces.trace import TensorInfo, Trace
    from gradwire.workload.loss_bounds import JobLossBounds
    from gradwire.workload.program import Ints, Messages, PacketImportance, ProcessOperations, Step


@dataclass(frozen=True, eq=False, kw_only=True)
class JobSetting:
    """The members of a job's exchange, and the tensors that they exchange.

    table : the scenario's [[job]] table.
    workers, servers : numbers of their hosts.
    cards : the hosts, and the nodes that are their NICs; a message goes from NIC to NIC.
    ready_order : tensors in the order in which their gradients become ready.
    scheduling : decisions of the job's scheduler.
    groups : int64[groups, members], numbers of workers: those that exchange with each other. None: all of them.
    tensors : whose gradients are exchanged. None: all.
    """

    table: Any
    trace: Trace
    workers: Sequence[int]
    servers: Sequence[int]
    cards: HostCards
    ready_order: Sequence[int]
    scheduling: Scheduling
    groups: Ints | None = None
    tensors: Sequence[int] | None = None

    @property
    def orders(self) -> list[list[int]]:
        """Tensors in bucket order: in the first iteration, and, if others follow, in later ones."""
        selected = frozenset(range(len(self.trace.tensors)) if self.tensors is None else self.tensors)
        orders = {"ready": self.ready_order, "model": range(len(self.trace.tensors) - 1, -1, -1)}
        return [[tensor for tensor in orders[fill] if tensor in selected] for fill in self.scheduling.fills]

    @property
    def exchanged(self) -> list[TensorInfo]:
        """The tensors whose gradients are exchanged."""
        all_ = self.trace.tensors
        return list(all_) if self.tensors is None else [all_[tensor] for tensor in self.tensors]

    @property
    def members(self) -> int:
        """Number of workers that exchange with each other."""
        return len(self.workers) if self.groups is None else int(self.groups.shape[1])

    @property
    def copies(self) -> int:
        """Number of groups of workers that exchange separately."""
        return 1 if self.groups is None else int(self.groups.shape[0])

    @property
    def rails(self) -> int:
        """NICs of the job's host that has the most; an exchange is divided into this many shares."""
        hosts = [*self.workers, *self.servers]
        return int(self.cards.network[hosts].max())

    @property
    def inside(self) -> int:
        """Number of consecutive workers of a group in one machine, if it is the same for all groups and machines; else
        1.

        1 if hosts have no accelerators.
        """
        if self.cards.machines is None:
            return 1
        machines = self.cards.machines[list(self.workers)]
        runs = {_run(row) for row in (machines[None] if self.groups is None else machines[np.asarray(self.groups)])}
        return runs.pop() if len(runs) == 1 else 1

    @property
    def nodes(self) -> Ints:
        """The nodes at which workers compute: their first NICs."""
        return np.array([self.cards.node(host, 0) for host in self.workers], dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class JobContext(JobSetting):
    """The job's data that an exchange may use, beside the members of the exchange.

    number : of its table in the program.
    priorities : the switch queue of every tensor's packets.
    captured : (worker, iteration) -> the iteration of the trace that is replayed.
    bounds : loss bounds of messages.
    seed : the scenario's.
    tagger : `gradwire.traces.tagging.Tagger`, or None if the job does not tag by magnitude.
    payload : data bytes of a full packet.
    sums : True if switches have slots to aggregate packets.
    """

    number: int
    priorities: Sequence[int]
    captured: Callable[[int, int], int]
    tagger: Any
    payload: int
    bounds: JobLossBounds
    seed: int
    sums: bool = False


def _run(machines: NDArray[Any]) -> int:
    """Return the length of the runs in one machine, if all runs are equally long and of different machines; else 1."""
    run = int(np.argmax(machines != machines[0])) or len(machines)
    if len(machines) % run:
        return 1
    blocks = machines.reshape(-1, run)
    regular = (blocks == blocks[:, :1]).all() and len(np.unique(blocks[:, 0])) == len(blocks)
    return run if regular else 1


class RoundAction(NamedTuple):
    """A worker's action at a layer or a communication: start rounds, wait for the end of one, start more rounds."""

    asks: Sequence[int] = ()
    waits: int = -1
    then_asks: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class ExchangedIteration:
    """One iteration of an exchange.

    step : its messages and events, without courses.
    fires : per worker and tensor (worker * tensors + tensor) the events that its gradient fires, in order.
    gates : int64[workers, layers + 1]: the event that a worker waits for, for each layer and, in the last column, for
        everything; -1 for none.
    forward : per worker and layer, and once more for the end of the pass (worker * (layers + 1) + layer), the events
        that are fired when forward reaches it; None: none.
    updates : int64[workers, n, 4], a worker's sequential actions after its backward pass: wait for an event, compute a
        fraction of the captured optimiser step (numerator, denominator), and fire an event, or none, -1. None: no
        action.
    threads : the courses of processes after the workers' (`Exchange.threads`).
    micros : number of micro-batches of an iteration.
    early : like `fires`, for each micro-batch before the last one, if their gradients are exchanged as well.
    inside : by micro-batch, backward (True) or forward, and layer: a worker's action there; `rounds` then has the
        events to fire and to wait for, two of int64[rounds, workers].
    called : by micro-batch and number of a communication of the trace: a worker's action there.
    """

    step: Step
    fires: CsrLists
    gates: Ints
    forward: CsrLists | None = None
    updates: Ints | None = None
    threads: tuple[ProcessOperations, ...] = ()
    micros: int = 1
    early: Sequence[CsrLists] = ()
    inside: Mapping[tuple[int, bool, int], RoundAction] = field(default_factory=dict)
    called: Mapping[tuple[int, int], RoundAction] = field(default_factory=dict)
    rounds: tuple[Ints, Ints] = ()  # type: ignore[assignment]

    def at_forward(self, position: int) -> list[int]:
        """Return the events that are fired at index `position` of `forward`."""
        if self.forward is None:
            return []
        first, events = self.forward
        return [int(event) for event in events[first[position] : first[position + 1]]]


def partial_updates(reduced: Ints, parts: int, updated: Ints | None = None) -> Ints:
    """Return `ExchangedIteration.updates` for workers that each update one of `parts` parts.

    reduced, updated : int64[workers], the event that each waits for, and the one that it fires afterwards.
    """
    ones = np.ones_like(reduced)
    return np.stack((reduced, ones, parts * ones, -ones if updated is None else updated), axis=1)[:, None]


class Exchange(ABC):
    """One job's exchange of gradients.

    layerwise : True if the forward pass of a layer waits for this layer only, not for everything.
    staleness : age of the result that workers use, in iterations before the last one.
    worker_optimizes : True if the workers run the captured optimiser step once everything has arrived (in a parameter
        server the servers do); layerwise, each layer's share before its forward step.
    slots, slots_apart : a host's limit of messages in flight, in all or to each other host (`slots_apart`), if the
        job's scheduler sets none; 0: no limit.
    repeats : set by a class if iterations from the second on differ only in their numbers when the same captured
        iterations are replayed.
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
        """The nodes of serial resources, such as a server's adder."""
        return self.context.nodes[:0]

    @property
    def threads(self) -> Ints:
        """The nodes of processes besides the workers, which act at the same time, such as communication threads."""
        return self.context.nodes[:0]

    @abstractmethod
    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
        """Return one iteration.

        ready : int64[workers, tensors], picoseconds from the iteration's beginning at which gradients are ready if
            nothing is waited for; messages are numbered by it.
        last : True for the last iteration.
        """

    def courses(
        self, iteration: int, factor: Callable[[int], float], start: int
    ) -> tuple[ProcessOperations, ...] | None:
        """Return the courses of its processes in an iteration, with events counted from the step's first; None: they
        replay the trace.

        factor : a worker's compute time relative to the trace.
        start : picoseconds at which the job begins.
        """
        return None

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        """The tensors of every bucket in bucket order, and the segments of a bucket; (), 1 without buckets."""
        return (), 1

    @property
    def parameter_buckets(self) -> int:
        """Number of buckets, the first ones, that are parameters requested by a pass instead of gradients."""
        return 0

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """First element and number of elements of every bucket that is a slice of one tensor; () if buckets are whole
        tensors."""
        return ()

    @property
    @abstractmethod
    def unit_bytes(self) -> int:
        """Bytes of the largest message."""

    @property
    @abstractmethod
    def bytes_per_iteration(self) -> int:
        """Bytes of all messages of one iteration."""


def refuse_long(nbytes: int, payload: int, where: str) -> None:
    """Raise ScenarioError if a message has more packets than a message can have."""
    if nbytes > payload * MAX_PACKETS:
        what = f"creates messages of {-(-nbytes // payload)} packets"
        raise ScenarioError(what, where, expected=f"at most {MAX_PACKETS} packets in a message")


class ImportancePatterns:
    """Distinct patterns of importance, by key."""

    def __init__(self) -> None:
        self.found: list[NDArray[np.bool_]] = []
        self._number: dict[Any, int] = {}

    def of(self, key: Any, make: Callable[[], NDArray[np.bool_]]) -> int:
        """Return the number of the pattern `key`; call `make` to create it if the key is new."""
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.found)
            self.found.append(make())
        return number


def make_messages(
    context: JobContext, kind: NDArray[Any], importance: PacketImportance, loss: LossAllowance, **columns: Any
) -> Messages:
    """Return the columns of a job's messages; a scalar in `columns` holds for all. `kind`: of `KINDS`, by name or
    number."""
    from gradwire.workload.program import Messages

    n = len(kind)
    numbers = np.asarray(kind)
    if numbers.dtype.kind == "U":
        names, which = np.unique(numbers, return_inverse=True)
        numbers = np.array([KINDS.index(name) for name in names.tolist()], dtype=np.int64)[which.reshape(-1)]
    values = {"table": context.number, "pool": loss.pool, **columns}
    full = {name: _column(value, n) for name, value in values.items()}
    identity = (full[name] for name in ("src", "dst", "tensor", "part"))
    full["turn"] = full["iteration"] + _beginning(context.seed, numbers, *identity)
    bound, share = (_column(value, n, "float64") for value in (loss.bound, loss.share))
    return Messages(kind=numbers, important=importance, bound=bound, share=share, **full)


def _column(value: Any, count: int, kind: str = "int64") -> NDArray[Any]:
    """Return a column for reading; if all values are equal, a broadcast of that one value."""
    column = np.asarray(value, dtype=kind)
    if column.ndim == 0 or (column == column[:1]).all():
        return np.broadcast_to(column if column.ndim == 0 else column[:1].copy(), count)
    return column if column.base is None else column.copy()  # a view would keep its base array alive


def _beginning(seed: int, *identity: Ints) -> Ints:
    """Return 16 random bits per message, the start of whatever rotates by iteration; keyed by the columns
    `identity`."""
    from gradwire.jit.counter_rng import MASK, draw_entropy, mix

    key: Any = np.zeros(len(identity[0]), dtype=np.int64)
    for column in identity:
        key = mix.py_func(key + column & MASK)
    return np.asarray(draw_entropy(seed, key), dtype=np.int64)
