"""Soundness: whether a Result keeps the promise of bounded loss, message by message and budget by budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.scenarios.arrow import arrow_array, numpy_of
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.loss import allowed_losses
from gradwire.scenarios.units import Ps, format_time

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.arrays import Ints
    from gradwire.scenarios.result import Result


KEY = ("job", "kind", "iteration", "src", "dst")
"""What messages of one budget have in common."""


class Violation(NamedTuple):
    """A message that was delivered with more loss than its bound, or whose bytes do not add up."""

    message: int
    job: str
    kind: str
    bytes: int
    received_bytes: int
    lost_bytes: int
    bound: float

    def __str__(self) -> str:
        return (
            f"message {self.message} ({self.kind}, job {self.job}): {self.received_bytes} bytes received and "
            f"{self.lost_bytes} lost of {self.bytes}, bound {self.bound:g}"
        )


class Overdraft(NamedTuple):
    """Messages of a step from one host to another that at a time have lost more together than their parts of a budget.

    `lost_bytes`, `allowed_bytes`: of those that were delivered by `end_ps`, the first such time.
    """

    job: str
    kind: str
    iteration: int
    src: str
    dst: str
    lost_bytes: int
    allowed_bytes: int
    end_ps: int

    def __str__(self) -> str:
        return (
            f"{self.kind} messages of job {self.job}, iteration {self.iteration}, from {self.src} to {self.dst}: "
            f"{self.lost_bytes} bytes lost by {format_time(Ps(self.end_ps))}, {self.allowed_bytes} allowed for those "
            "delivered by then"
        )


class Mismatch(NamedTuple):
    """Two places of a Result that count the same loss, and differ."""

    what: str
    bytes: int
    other: str
    other_bytes: int

    def __str__(self) -> str:
        return f"{self.what} has {self.bytes} bytes lost, {self.other} {self.other_bytes}"


Unsound = Violation | Overdraft | Mismatch


def check_loss_invariant(result: Result) -> list[Unsound]:
    """Everything that breaks the promise of bounded loss; an empty list if the run was sound.

    A delivered message must have lost at most `allowed_loss` of its bound, and what it received and lost must add up
    to its size, so that a loss cannot hide by not being counted. Where a bound holds for all messages of a step, those
    from one host to another that have been delivered must at no time have lost more than their parts of it together:
    then nor have those of a worker. What the tables of messages and of missing packets and the totals say of the same
    loss must be the same. Messages still under way promise nothing.
    """
    found: list[Unsound] = []
    for part in result.parts("messages", *Violation._fields, "end_ps"):
        found += _violations(part)
    return found + overdrafts(result) + mismatches(result)


def _violations(table: pyarrow.Table) -> list[Violation]:
    import numpy as np

    size, got, lost, bound, end = (
        numpy_of(table[name]) for name in ("bytes", "received_bytes", "lost_bytes", "bound", "end_ps")
    )
    broken = (lost > allowed_losses(size, bound)) | (got + lost != size) | (lost < 0)
    violated = np.flatnonzero(broken & (end >= 0))
    if not len(violated):  # taking no rows would load all of pyarrow.compute
        return []
    rows = table.take(arrow_array(violated, "int64")).to_pylist()
    return [Violation(*(row[name] for name in Violation._fields)) for row in rows]


def overdrafts(result: Result) -> list[Overdraft]:
    """The groups of messages that have at a time lost more together than they may; see `check_loss_invariant`."""
    import numpy as np

    if all(part["share"].equals(part["bound"]) for part in result.parts("messages", "share", "bound")):
        return []
    groups: dict[tuple[Any, ...], int] = {}
    parts = [_spent(part, groups) for part in result.parts("messages", *KEY, "bytes", "share", "lost_bytes", "end_ps")]
    group, end, lost, allowed = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((end, group))
    group, end, lost, allowed = group[order], end[order], np.cumsum(lost[order]), np.cumsum(allowed[order])
    first = np.flatnonzero(np.diff(group, prepend=-1))
    before = np.repeat(np.stack((lost, allowed))[:, first - 1] * (first > 0), np.diff(first, append=len(group)), axis=1)
    lost, allowed = lost - before[0], allowed - before[1]
    # of messages that are delivered at one time, all count before it is asked
    settled = (np.diff(group, append=-1) != 0) | (np.diff(end, append=-1) != 0)
    broken = np.flatnonzero(settled & (lost > allowed))
    earliest = broken[np.unique(group[broken], return_index=True)[1]]
    keys = list(groups)
    return [
        Overdraft._make((*keys[group[each]], int(lost[each]), int(allowed[each]), int(end[each])))
        for each in earliest.tolist()
    ]


def _spent(table: pyarrow.Table, groups: dict[tuple[Any, ...], int]) -> tuple[Ints, Ints, Ints, Ints]:
    """Group, end, lost and allowed bytes of the delivered messages; new groups are numbered as they come."""
    import numpy as np

    columns, texts = [], []
    for name in KEY:
        codes, values = (numpy_of(table[name]), None) if name == "iteration" else numbered(table[name])
        columns.append(codes)
        texts.append(values)
    done = np.flatnonzero(numpy_of(table["end_ps"]) >= 0)
    keys, first, which = np.unique(np.stack(columns)[:, done], axis=1, return_index=True, return_inverse=True)
    number = np.zeros(len(first), dtype=np.int64)
    for own in np.argsort(first).tolist():
        key = tuple(
            value if entries is None else entries[value]
            for value, entries in zip(keys[:, own].tolist(), texts, strict=True)
        )
        number[own] = groups.setdefault(key, len(groups))
    allowed = allowed_losses(numpy_of(table["bytes"])[done], numpy_of(table["share"])[done])
    return (
        number[which.ravel()],
        numpy_of(table["end_ps"])[done],
        numpy_of(table["lost_bytes"])[done],
        np.asarray(allowed, dtype=np.int64),
    )


def mismatches(result: Result) -> list[Mismatch]:
    """Where losses are counted twice and differently: messages, missing packets where there are any, totals."""
    import numpy as np

    number, lost = [], []
    for part in result.parts("messages", "message", "lost_bytes", "end_ps"):
        number.append(numpy_of(part["message"]))
        lost.append(np.where(numpy_of(part["end_ps"]) >= 0, numpy_of(part["lost_bytes"]), 0))
    if not number:
        return []
    numbers, said = np.concatenate(number), np.concatenate(lost)
    found = []
    total, counted = result.summary.get("totals", {}).get("lost_bytes"), int(said.sum())
    if total is not None and total != counted:
        found.append(Mismatch("the table of messages", counted, "the summary", total))
    order = np.argsort(numbers, kind="stable")
    missing = np.zeros(len(numbers), dtype=np.int64)
    rows = 0
    for part in result.parts("missing", "message", "bytes"):
        place = np.searchsorted(numbers, numpy_of(part["message"]), sorter=order)
        np.add.at(missing, order[place], numpy_of(part["bytes"]))
        rows += part.num_rows
    for each in np.flatnonzero(missing != said).tolist() if rows else ():
        what = f"message {numbers[each]} of the table of messages"
        found.append(Mismatch(what, int(said[each]), "that of missing packets", int(missing[each])))
    return found
