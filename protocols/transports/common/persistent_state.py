"""State that outlives messages: its relevant words, and the points in time among them.

Connections that carry message after message, and the words shared by the messages of a pair of hosts, outlive the
messages. Iterations of a job that begin with equal words are equal, so they need not be simulated again
(`gradwire.sim.engine.fast_forward.fast_forward`); if some are skipped, the points in time are moved accordingly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradwire.jit.layout import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire.scenarios.arrays import Ints


class PersistentState(NamedTuple):
    """Offsets of words that are not plain numbers, in a long-lived record without messages in flight.

    All other words count as they are.

    times : points in time, 0 for none.
    ahead : points in time that only matter while they are in the future.
    idle : words without meaning then: numbers of past packets, counters of which only changes are used.
    """

    times: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()

    def union(self, other: PersistentState) -> PersistentState:
        """Return the union of two sets of offsets: those of the engine and those of a transport."""
        return PersistentState(*(offsets + others for offsets, others in zip(self, other, strict=True)))

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

    def shift_times(self, M: Ints, bases: Ints, by: int) -> None:
        """Move all points in time of records by `by` picoseconds. `bases` : int64[n], in the state `M`."""
        import numpy as np

        words = bases[:, None] + np.array([*self.times, *self.ahead], dtype=np.int64)
        M[words] += np.where(M[words] > 0, by, 0)


def relevant_states(parts: Iterable[tuple[int, Ints, int, PersistentState]], M: Ints, anchor: int) -> list[Ints]:
    """Return the state of records while nothing is in flight: equal states continue equally. `parts` : for each kind of
    record its transport, int64[n] bases in the state `M`, the number of words, and the offsets."""
    import numpy as np

    states = []
    for transport, bases, words, offsets in parts:
        rows = M[bases[:, None] + np.arange(words)]
        states += [np.array([transport, len(bases)]), offsets.relevant_state(rows, anchor).ravel()]
    return states
