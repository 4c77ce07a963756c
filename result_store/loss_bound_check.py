"""`check_loss_invariant` checks every message and budget in a Result against its loss bound and returns the
violations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.result_store.arrow import arrow_array, to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.scenarios.loss import allowed_loss_per_message
from gradwire.scenarios.units import Ps, format_time

if TYPE_CHECKING:
    import pyarrow

    from gradwire.result_store.result import Result
    from gradwire.scenarios.arrays import Ints


KEY = ("job", "kind", "iteration", "src", "dst")
"""Columns that identify the messages of one budget."""


class Violation(NamedTuple):
    """A message delivered with more loss than its bound, or whose bytes do not add up."""

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


class BudgetViolation(NamedTuple):
    """Messages of a step from one host to another whose total loss exceeds their shares of a budget at some time.
    `lost_bytes`, `allowed_bytes`: of those delivered by `end_ps`, the first such time."""

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
    """Two counts of the same loss in a Result that differ."""

    what: str
    bytes: int
    other: str
    other_bytes: int

    def __str__(self) -> str:
        return f"{self.what} has {self.bytes} bytes lost, {self.other} {self.other_bytes}"


Unsound = Violation | BudgetViolation | Mismatch


def check_loss_invariant(result: Result) -> list[Unsound]:
    """Return everything that violates the loss bounds; an empty list if the run was sound.

    A delivered message must have lost at most `allowed_loss` of its bound, and its received and lost bytes must add up
    to its size, so that no loss stays uncounted. Where a bound covers all messages of a step, those delivered from one
    host to another must at no time have lost more than their shares of it together: then nor have those of a worker.
    The tables of messages and missing packets and the totals must agree on the loss. Undelivered messages are not
    checked.
    """
    violations: list[Unsound] = []
    for part in result.parts("messages", *Violation._fields, "end_ps"):
        violations += _violations(part)
    return violations + overdrafts(result) + mismatches(result)


def _violations(table: pyarrow.Table) -> list[Violation]:
    import numpy as np

    size, got, lost, bound, end = (
        to_numpy(table[name]) for name in ("bytes", "received_bytes", "lost_bytes", "bound", "end_ps")
    )
    broken = (lost > allowed_loss_per_message(size, bound)) | (got + lost != size) | (lost < 0)
    violated = np.flatnonzero(broken & (end >= 0))
    if not len(violated):  # taking no rows would load all of pyarrow.compute
        return []
    rows = table.take(arrow_array(violated, "int64")).to_pylist()
    return [Violation(*(row[name] for name in Violation._fields)) for row in rows]


def overdrafts(result: Result) -> list[BudgetViolation]:
    """Return groups of messages whose total loss exceeds their allowance at some time; see `check_loss_invariant`."""
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
    # messages delivered at the same time count together
    settled = (np.diff(group, append=-1) != 0) | (np.diff(end, append=-1) != 0)
    broken = np.flatnonzero(settled & (lost > allowed))
    earliest = broken[np.unique(group[broken], return_index=True)[1]]
    keys = list(groups)
    return [
        BudgetViolation._make((*keys[group[each]], int(lost[each]), int(allowed[each]), int(end[each])))
        for each in earliest.tolist()
    ]


def _spent(table: pyarrow.Table, groups: dict[tuple[Any, ...], int]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return group, end, lost and allowed bytes of the delivered messages; new groups get the next numbers."""
    import numpy as np

    columns, texts = [], []
    for name in KEY:
        codes, values = (to_numpy(table[name]), None) if name == "iteration" else dictionary_encoded(table[name])
        columns.append(codes)
        texts.append(values)
    done = np.flatnonzero(to_numpy(table["end_ps"]) >= 0)
    keys, first, which = np.unique(np.stack(columns)[:, done], axis=1, return_index=True, return_inverse=True)
    number = np.zeros(len(first), dtype=np.int64)
    for group in np.argsort(first).tolist():
        key = tuple(
            value if entries is None else entries[value]
            for value, entries in zip(keys[:, group].tolist(), texts, strict=True)
        )
        number[group] = groups.setdefault(key, len(groups))
    allowed = allowed_loss_per_message(to_numpy(table["bytes"])[done], to_numpy(table["share"])[done])
    return (
        number[which.ravel()],
        to_numpy(table["end_ps"])[done],
        to_numpy(table["lost_bytes"])[done],
        np.asarray(allowed, dtype=np.int64),
    )


def mismatches(result: Result) -> list[Mismatch]:
    """Return the differences between losses in messages, missing packets (if any) and totals."""
    import numpy as np

    number, lost = [], []
    for part in result.parts("messages", "message", "lost_bytes", "end_ps"):
        number.append(to_numpy(part["message"]))
        lost.append(np.where(to_numpy(part["end_ps"]) >= 0, to_numpy(part["lost_bytes"]), 0))
    if not number:
        return []
    numbers, message_losses = np.concatenate(number), np.concatenate(lost)
    differences = []
    total, counted = result.summary.get("totals", {}).get("lost_bytes"), int(message_losses.sum())
    if total is not None and total != counted:
        differences.append(Mismatch("the table of messages", counted, "the summary", total))
    order = np.argsort(numbers, kind="stable")
    missing = np.zeros(len(numbers), dtype=np.int64)
    rows = 0
    for part in result.parts("missing", "message", "bytes"):
        index = np.searchsorted(numbers, to_numpy(part["message"]), sorter=order)
        np.add.at(missing, order[index], to_numpy(part["bytes"]))
        rows += part.num_rows
    for row in np.flatnonzero(missing != message_losses).tolist() if rows else ():
        what = f"message {numbers[row]} of the table of messages"
        differences.append(Mismatch(what, int(message_losses[row]), "that of missing packets", int(missing[row])))
    return differences
