"""Graphs of ranks, played as they are: Chakra files of all ranks of a job.

Every worker has a rank's graph: nodes that compute, collectives among process groups, sends and receives, and what
needs what. Tensor, pipeline, expert and data parallelism are whatever the graphs do; nothing has to be known of them.

A unit of a rank - its GPU, its CPU - computes one node at a time, in the order in which all graphs run with a network
that takes no time (`gradwire.traces.formats.chakra_ranks`), as kernels of a stream do: a node that waits for the
network holds up those behind it. Collectives and messages wait for nothing but their needs, and any number of them is
under way at once. A collective is over at a rank when it has all that it gets; a send is over at once, for the message
is buffered (our choice), and a receive when the message is there. An iteration is over at a worker when its nodes are.

All-reduces, reduce-scatters and all-gathers go by `algorithm`, all-to-alls at once, broadcasts down a binomial tree
from the first member (our choice), barriers as all-reduces of four bytes. On an idle network, where a message of m
bytes takes a + m b, a receive is over a + m b behind its send, and collectives of S bytes among g take what they do in
`gradwire.experiment.collectives.parallel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.exchange import ExchangeTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class Graph(ExchangeTable):
    """The graphs of all ranks of an imported trace, played as they are: computing, collectives of process groups, sends
    and receives. A worker is a rank."""

    kind: Literal["graph"]
    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """How all-reduces, reduce-scatters and all-gathers go."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", f"makes no {self.kind}", job.workers, "at least two workers")
        for key, value, wanted in (
            ("accumulate", job.accumulate, 1), ("push_bound", job.push_bound, 0), ("pull_bound", job.pull_bound, 0),
            ("tagging.magnitude", job.tagging.magnitude, False), ("order", job.order, "fifo"),
        ):  # fmt: skip
            if value != wanted:
                what = f"is about gradients, and {self.kind} plays whatever the graphs do"
                yield Mistake(key, what, expected=str(wanted).lower())
        if job.scheduler is not None:
            what = f"would order gradients, and {self.kind} plays whatever the graphs do"
            yield Mistake("scheduler", what, job.scheduler.kind, "to leave it out")

    def against(self, job: Job, trace: Any) -> Iterator[Mistake]:
        graphs = trace.graphs
        if graphs is None:
            what = f"plays graphs of ranks, and the trace {trace.name} has none"
            yield Mistake("exchange.kind", what, self.kind, "a trace imported with --ranks; or another exchange")
            return
        if graphs.ranks != job.workers:
            what = f"are not the ranks of the trace {trace.name}"
            yield Mistake("workers", what, job.workers, str(graphs.ranks))
        if not graphs.calls:
            yield Mistake("trace", f"has nothing to send: no rank of {trace.name} calls another", job.trace)
        halves = ("all_reduce", "all_gather", "reduce_scatter")
        sizes = {len(each.members) for each in graphs.calls if each.kind in halves}
        if self.algorithm == "halving" and (odd := [size for size in sorted(sizes) if size & (size - 1)]):
            what = f"does not go among the {odd[0]} ranks of a process group"
            yield Mistake("exchange.algorithm", what, self.algorithm, "ring or all_to_all")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "algorithm", 0  # what is sent is looked at where the graphs are known

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.experiment.collectives.parallel import sent_of
        from gradwire.traces.graphs import SEND

        rails = setting.rails
        return sum(
            1 if each.kind == SEND else sent_of(each.kind, self.algorithm, len(each.members), rails)
            for each in setting.trace.graphs.calls
        )

    def collective(self, context: Any) -> Any:
        from gradwire.experiment.collectives.graph import Played

        return Played(context, self)
