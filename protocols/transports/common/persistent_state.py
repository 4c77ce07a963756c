"""`PersistentState` extracts the comparable state of connections, pairs and hosts for fast-forward, and shifts their
times past skipped iterations.

Connections that carry message after message, and the state that the messages of a pair of hosts share, outlive the
messages. Iterations of a job that begin with equal state are equal, so they need not be simulated again
(`gradwire.sim.engine.fast_forward.fast_forward`); if some are skipped, the points in time are moved accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.jit.records import Entry
from gradwire.jit.records.constants import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire.scenarios.arrays import Ints

Fields = Sequence[Entry]


class PersistentState:
    """The fields of a long-lived record that are not plain numbers while no message is in flight.

    All other words count as they are.

    Attributes
    ----------
    times : offsets of points in time, 0 for none.
    ahead : offsets of points in time that only matter while they are in the future.
    idle : offsets of fields without meaning then: numbers of past packets, counters of which only changes are used.
    """

    def __init__(self, times: Fields = (), ahead: Fields = (), idle: Fields = ()) -> None:
        """Each a sequence of entries of the record."""
        self.times, self.ahead, self.idle = (tuple(field.offset for field in fields) for fields in (times, ahead, idle))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PersistentState) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def union(self, other: PersistentState) -> PersistentState:
        """Return the union of two sets: those of the engine and those of a transport."""
        both = PersistentState()
        both.times, both.ahead, both.idle = (
            getattr(self, name) + getattr(other, name) for name in ("times", "ahead", "idle")
        )
        return both

    def relevant_state(self, rows: Ints, anchor: int) -> Ints:
        """Return the relevant state of records, so that records with equal state continue equally. `rows` : int64[n,
        words]; times are relative to `anchor`, the next event."""
        import numpy as np

        rows = rows.copy()
        times, ahead = list(self.times), list(self.ahead)
        rows[:, times] = np.where(rows[:, times] > 0, rows[:, times] - anchor, FOREVER)
        rows[:, ahead] = np.maximum(rows[:, ahead] - anchor, 0)
        rows[:, list(self.idle)] = 0
        return rows

    def shift_times(self, state: Ints, bases: Ints, by: int) -> None:
        """Move all points in time of records by `by` picoseconds. `bases` : int64[n], in `state`."""
        import numpy as np

        words = bases[:, None] + np.array([*self.times, *self.ahead], dtype=np.int64)
        state[words] += np.where(state[words] > 0, by, 0)


def relevant_states(parts: Iterable[tuple[int, Ints, int, PersistentState]], state: Ints, anchor: int) -> list[Ints]:
    """Return the state of records while nothing is in flight: equal states continue equally. `parts` : for each kind of
    record its transport, int64[n] bases in `state`, the number of words, and the offsets."""
    import numpy as np

    states = []
    for transport, bases, words, offsets in parts:
        rows = state[bases[:, None] + np.arange(words)]
        states += [np.array([transport, len(bases)]), offsets.relevant_state(rows, anchor).ravel()]
    return states
