"""Graphs of a job's ranks, as Chakra files have them: what each rank computes and calls, and what needs what.

Rows are the nodes of all ranks in an order in which they could run, so that each needs earlier ones of its rank only.
What ranks do together is a *call*, a collective or a message: it has a row at every one of its members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import TraceError
from gradwire.traces.parts import COLLECTIVES

Ints = NDArray[np.int64]
SEND = "send"
UNITS = ("gpu", "cpu")
ROLES = ("forward", "backward", "other")


class Call(NamedTuple):
    """What ranks do together: a collective (of `COLLECTIVES`) among `members`, or "send", from the first to the second.

    bytes : of a member's whole buffer, as of `gradwire.traces.parts.Communication`; of the message.
    """

    kind: str
    members: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of all ranks, int64[nodes] unless said otherwise.

    Attributes
    ----------
    names : of the nodes.
    rank : whose each is.
    unit, role : indices into UNITS and ROLES: what computes it, and in which pass.
    effort_ps : how long it computes.
    call : number of the call that it is, -1 for none.
    first, needs : row n needs the rows `needs[first[n] : first[n + 1]]`.
    calls : in the order of their numbers.
    """

    names: Sequence[str]
    rank: Ints
    unit: Ints
    role: Ints
    effort_ps: Ints
    call: Ints
    first: Ints
    needs: Ints
    calls: Sequence[Call]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(self.rank.max()) + 1

    def of(self, row: int) -> list[int]:
        """The rows that a row needs."""
        return [int(each) for each in self.needs[self.first[row] : self.first[row + 1]]]

    def check(self) -> None:
        """Raise TraceError unless the parts fit together, and rows need earlier ones of their rank."""
        count = len(self.names)
        columns = (self.rank, self.unit, self.role, self.effort_ps, self.call)
        if not count or any(len(each) != count for each in columns) or len(self.first) != count + 1:
            found = [len(each) for each in columns]
            raise TraceError(f"columns of {found} rows", "nodes", f"{count}, and one at least")
        for name, values, low, high in (
            ("rank", self.rank, 0, count), ("unit", self.unit, 0, len(UNITS)), ("role", self.role, 0, len(ROLES)),
            ("effort_ps", self.effort_ps, 0, 2**62), ("call", self.call, -1, len(self.calls)),
        ):  # fmt: skip
            if int(values.min()) < low or int(values.max()) >= high:
                raise TraceError(f"{name} from {values.min()} to {values.max()}", "nodes", f"{low} to {high - 1}")
        owner = np.repeat(np.arange(count), np.diff(self.first))
        if len(owner) and (self.needs.min() < 0 or (self.needs >= owner).any()):
            raise TraceError("a node that needs a later one", "nodes", "an order in which they could run")
        if (self.rank[self.needs] != self.rank[owner]).any():
            raise TraceError("a node that needs one of another rank", "nodes", "calls between ranks")
        came: dict[int, list[int]] = {}
        for row in np.flatnonzero(self.call >= 0).tolist():
            came.setdefault(int(self.call[row]), []).append(int(self.rank[row]))
        for number, each in enumerate(self.calls):
            members = sorted(set(each.members))
            known = each.kind in COLLECTIVES or (each.kind == SEND and len(members) == 2)
            there = sorted(came.get(number, [])) == members and 1 < len(members) == len(each.members)
            if not known or not there or each.bytes < 1:
                raise TraceError(f"call {number} is {each}", "calls", "a kind that is known, and a node at each member")

    def digest(self) -> bytes:
        """sha256 of everything."""
        hasher = hashlib.sha256(repr((list(self.names), [tuple(each) for each in self.calls])).encode())
        for column in (self.rank, self.unit, self.role, self.effort_ps, self.call, self.first, self.needs):
            hasher.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return hasher.digest()
