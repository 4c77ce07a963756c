"""What outlives messages, while none is under way: which words of it still matter, and which of them are times.

Connections that carry message after message, and what messages of a pair of hosts share, stay when the messages are
over. Iterations of a job between which such words stand alike go alike, so that they need not be simulated again
(`gradwire.sim.fabric.forward`); where some are left out, what they know of times is moved on by as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradwire.components.layout import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire.scenarios.arrays import Ints


class AtRest(NamedTuple):
    """Offsets of words that are something else than plain numbers, in a record that outlives messages, while nothing of
    it is under way; of all others it matters what they are.

    times : points in time, 0 for none.
    ahead : points in time that only matter as long as they are to come.
    idle : words that say nothing then: numbers of packets that are over, counters of which only a change is looked at.
    """

    times: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()

    def and_of(self, other: AtRest) -> AtRest:
        """Both: what belongs to the engine in a record, and what to a transport."""
        return AtRest(*(mine + its for mine, its in zip(self, other, strict=True)))

    def told(self, rows: Ints, anchor: int) -> Ints:
        """What matters of records, so that records that are told alike go on alike. `rows` : int64[n, words]; times are
        counted from `anchor`, the next thing that happens."""
        import numpy as np

        rows = rows.copy()
        times, ahead = list(self.times), list(self.ahead)
        rows[:, times] = np.where(rows[:, times] > 0, rows[:, times] - anchor, FOREVER)
        rows[:, ahead] = np.maximum(rows[:, ahead] - anchor, 0)
        rows[:, list(self.idle)] = 0
        return rows

    def later(self, M: Ints, bases: Ints, by: int) -> None:
        """Let all that records know of times be so many picoseconds later. `bases` : int64[n], in the state `M`."""
        import numpy as np

        places = bases[:, None] + np.array([*self.times, *self.ahead], dtype=np.int64)
        M[places] += np.where(M[places] > 0, by, 0)


def told_of(parts: Iterable[tuple[int, Ints, int, AtRest]], M: Ints, anchor: int) -> list[Ints]:
    """How records stand while nothing is under way: two moments that are told alike go on alike. `parts` : of each kind
    its transport, int64[n] where records are in the state `M`, how many words each has, and which of them are what."""
    import numpy as np

    found = []
    for transport, bases, words, which in parts:
        rows = M[bases[:, None] + np.arange(words)]
        found += [np.array([transport, len(bases)]), which.told(rows, anchor).ravel()]
    return found
