"""All-to-all: every worker sends each other one a part of its own.

It is what expert parallelism does with tokens before and after its experts, twice in every pass, and what a transposed
matrix takes; here a bucket of gradients stands for what is sent. Worker w sends the i-th of N parts to worker i, all at
once, to the next worker first; nothing is added up, and what arrives is put beside what was there (so a message is an
"all_gather" in the Result). A lost part is missing at its receiver and nowhere else.

Every worker sends (N - 1)/N S of a bucket of S bytes. On an idle network, where a message of m bytes takes a + m b and
messages share a line evenly, a bucket takes a + (N - 1)/N S b.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.collectives.staged_table import StagedTable

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers


class AllToAll(StagedTable):
    """Every worker sends each other one an N-th of a bucket: what expert parallelism does with tokens."""

    kind: Literal["all_to_all"]

    def parts(self, workers: int) -> int:
        return workers

    def sent(self, workers: int, rails: int, inside: int) -> int:
        return workers * (workers - 1) * rails

    def at_once(self, setting: Any) -> int:
        return setting.copies * setting.members * (setting.members - 1) * setting.rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        from gradwire.experiment.collectives.schedule import transfers
        from gradwire.experiment.collectives.walks import scattered

        return transfers(scattered(workers), workers, rails)
