"""`RankGraphs` holds and checks the execution graphs (computation, calls, dependencies) of all ranks of a job.

Rows are the nodes of all ranks in an order in which they could run: a row depends only on earlier rows of its rank. A
*call* is a collective or a message; it has one row at each of its members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import np
from gradwire.traces.parts import COLLECTIVES

SEND = "send"
CALL_KINDS = (*COLLECTIVES, "reduce", "gather", "scatter")
"""Collectives of graphs; the root of a rooted one is its first member."""
UNITS = ("gpu", "cpu")
ROLES = ("forward", "backward", "other")


class RankCall(NamedTuple):
    """Collective (one of `CALL_KINDS`) among `members`, or message ("send") from the first member to the second.

    bytes : size of a member's whole buffer, as in `gradwire.traces.parts.Communication`, or of the message.
    """

    kind: str
    members: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class RankGraphs:
    """Execution graphs of all ranks; columns are int64[nodes] unless stated otherwise.

    Attributes
    ----------
    names : of the nodes.
    rank : of each node.
    unit, role : indices into UNITS and ROLES: the processor and the pass of a node.
    effort_ps : compute time.
    call : number of the node's call, -1 for none.
    first, needs : row n depends on the rows `needs[first[n] : first[n + 1]]`.
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
    calls: Sequence[RankCall]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.rank.max()) + 1

    def of(self, row: int) -> list[int]:
        """Return the rows that `row` depends on."""
        return [int(need) for need in self.needs[self.first[row] : self.first[row + 1]]]

    def check(self) -> None:
        """Raise TraceError unless columns agree in length and range, and rows depend on earlier rows of their rank."""
        count = len(self.names)
        columns = (self.rank, self.unit, self.role, self.effort_ps, self.call)
        if not count or any(len(column) != count for column in columns) or len(self.first) != count + 1:
            lengths = [len(column) for column in columns]
            raise TraceError(f"columns of {lengths} rows", "nodes", f"{count} rows each, at least one")
        for name, values, low, high in (
            ("rank", self.rank, 0, count),
            ("unit", self.unit, 0, len(UNITS)),
            ("role", self.role, 0, len(ROLES)),
            ("effort_ps", self.effort_ps, 0, 2**62),
            ("call", self.call, -1, len(self.calls)),
        ):
            if int(values.min()) < low or int(values.max()) >= high:
                raise TraceError(f"{name} from {values.min()} to {values.max()}", "nodes", f"{low} to {high - 1}")
        owner = np.repeat(np.arange(count), np.diff(self.first))
        if len(owner) and (self.needs.min() < 0 or (self.needs >= owner).any()):
            raise TraceError("a node that depends on a later one", "nodes", "nodes in an order in which they could run")
        if (self.rank[self.needs] != self.rank[owner]).any():
            raise TraceError("a node that depends on one of another rank", "nodes", "calls between ranks")
        ranks_by_call: dict[int, list[int]] = {}
        for row in np.flatnonzero(self.call >= 0).tolist():
            ranks_by_call.setdefault(int(self.call[row]), []).append(int(self.rank[row]))
        for number, call in enumerate(self.calls):
            members = sorted(set(call.members))
            is_known = call.kind in CALL_KINDS or (call.kind == SEND and len(members) == 2)
            is_complete = sorted(ranks_by_call.get(number, [])) == members and 1 < len(members) == len(call.members)
            if not is_known or not is_complete or call.bytes < 1:
                raise TraceError(f"call {number} is {call}", "calls", "a known kind, and one node at each member")

    def digest(self) -> bytes:
        """Return the sha256 of all columns and calls."""
        hasher = hashlib.sha256(repr((list(self.names), [tuple(call) for call in self.calls])).encode())
        for column in (self.rank, self.unit, self.role, self.effort_ps, self.call, self.first, self.needs):
            hasher.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return hasher.digest()
