"""Transpose all-reduce: two all-to-alls.

Every worker owns an N-th of the bucket. All send everybody the part that is theirs (an all-to-all, and a
reduce-scatter in effect); the owner adds up, and sends everybody the sum (an all-gather by an all-to-all). Two
rounds, however many workers; what a value goes through is two messages. OptiReduce calls it the transpose all-reduce
(NSDI '25 [notes]), and it is what sharded, co-located parameter servers do.

Every worker sends 2(N - 1)/N S. On an idle network, where a message of m bytes takes a + m b and messages share a
line evenly, a bucket takes 2 a + 2(N - 1)/N S b: every worker sends to the N - 1 others at once, beginning with the
next one, so that at any time all receive alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.collectives.staged_table import StagedTable

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers


class Transpose(StagedTable):
    """All-reduce by two all-to-alls: every worker adds up its own N-th of a bucket, and hands it to all."""

    kind: Literal["transpose"]

    def parts(self, workers: int) -> int:
        return workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return 2 * workers * (workers - 1) * rails

    def at_once(self, setting: Any) -> int:
        return setting.copies * setting.members * (setting.members - 1) * setting.rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        from gradwire.experiment.collectives.schedule import transfers
        from gradwire.experiment.collectives.walks import all_to_all

        return transfers(all_to_all(workers), workers, rails)
