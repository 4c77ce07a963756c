"""Soundness: whether a Result keeps the promise of bounded loss, message by message and budget by budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.scenarios.kept import numbered
from gradwire.scenarios.loss import allowed_losses

if TYPE_CHECKING:
    import pyarrow

    from gradwire.scenarios.result import Result


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
    """Messages of a step from one host to another that have lost more together than their parts of a budget."""

    job: str
    kind: str
    iteration: int
    src: str
    dst: str
    lost_bytes: int
    allowed_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.kind} messages of job {self.job}, iteration {self.iteration}, from {self.src} to {self.dst}: "
            f"{self.lost_bytes} bytes lost, {self.allowed_bytes} allowed for all of them"
        )


def check_loss_invariant(result: Result) -> list[Violation | Overdraft]:
    """Everything that breaks the promise of bounded loss; an empty list if the run was sound.

    A delivered message must have lost at most `allowed_loss` of its bound, and what it received and lost must add up
    to its size, so that a loss cannot hide by not being counted. Where a bound holds for all messages of a step, those
    from one host to another that have been delivered must not have lost more than their parts of it together: then
    nor have those of a worker. Messages still under way promise nothing.
    """
    found: list[Violation | Overdraft] = []
    for part in result.parts("messages", *Violation._fields, "end_ps"):
        found += _violations(part)
    return found + overdrafts(result)


def _violations(table: pyarrow.Table) -> list[Violation]:
    import numpy as np

    size, got, lost, bound, end = (
        table[name].to_numpy() for name in ("bytes", "received_bytes", "lost_bytes", "bound", "end_ps")
    )
    broken = (lost > allowed_losses(size, bound)) | (got + lost != size) | (lost < 0)
    rows = table.take(np.flatnonzero(broken & (end >= 0))).to_pylist()
    return [Violation(*(row[name] for name in Violation._fields)) for row in rows]


def overdrafts(result: Result) -> list[Overdraft]:
    """The groups of messages that have lost more together than they may; see `check_loss_invariant`."""
    if all(part["share"].equals(part["bound"]) for part in result.parts("messages", "share", "bound")):
        return []
    lost: dict[tuple[Any, ...], list[int]] = {}
    for part in result.parts("messages", *Overdraft._fields[:6], "bytes", "share", "end_ps"):
        _add_up(part, lost)
    return [Overdraft(*key, *total) for key, total in lost.items() if total[0] > total[1]]


def _add_up(table: pyarrow.Table, lost: dict[tuple[Any, ...], list[int]]) -> None:
    """Add what delivered messages have lost, and what they may, to the totals of their groups."""
    import numpy as np

    columns, texts = [], []
    for name in Overdraft._fields[:5]:
        codes, values = (table[name].to_numpy(), None) if name == "iteration" else numbered(table[name])
        columns.append(codes)
        texts.append(values)
    done = np.flatnonzero(table["end_ps"].to_numpy() >= 0)
    keys, first, which = np.unique(np.stack(columns)[:, done], axis=1, return_index=True, return_inverse=True)
    allowed = allowed_losses(table["bytes"].to_numpy()[done], table["share"].to_numpy()[done])
    totals = np.zeros((2, len(first)), dtype=np.int64)
    np.add.at(totals[0], which.ravel(), table["lost_bytes"].to_numpy()[done])
    np.add.at(totals[1], which.ravel(), allowed)
    for group in np.argsort(first).tolist():
        key = tuple(
            value if entries is None else entries[value]
            for value, entries in zip(keys[:, group].tolist(), texts, strict=True)
        )
        total = lost.setdefault(key, [0, 0])
        total[0] += int(totals[0, group])
        total[1] += int(totals[1, group])
