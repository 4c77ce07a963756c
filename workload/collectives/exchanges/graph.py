"""The table `graph` declares an exchange that plays the ranks' operation graphs as they are; `graph_steps` builds its
messages. The graphs come from Chakra files of all ranks of a job, or from a GOAL schedule.

Every worker has a rank's graph: compute nodes, collectives among process groups, sends and receives, and their
dependencies. Tensor, pipeline, expert and data parallelism are whatever the graphs do; they need not be declared.

A unit of a rank (its GPU or its CPU) computes one node at a time, in the order in which all graphs run on a network
without delay (`gradwire.traces.formats.chakra_graphs.ranks`), like the kernels of a stream: a node that waits for the
network blocks the nodes after it. Collectives and messages wait for their dependencies only, and any number of them is
in flight at once. A collective is over at a rank when it has received everything; a send is over at once, for the
message is buffered (our choice), and a receive when the message has arrived. An iteration is over at a worker when its
nodes are.

All-reduces, reduce-scatters and all-gathers use `algorithm`, all-to-alls send everything at once, broadcasts go down a
binomial tree from their root and reductions up to it (our choice), gathers and scatters go to or from it at once,
barriers are all-reduces of four bytes. On an idle network, where a
message of m bytes takes a + m b, a receive is over a + m b after its send, and collectives of S bytes among g ranks
take the times of `gradwire.workload.collectives.common.model_parallel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.job.exchange import ExchangeTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class GraphExchange(ExchangeTable):
    """The graphs of all ranks of an imported trace, played as they are: computing, collectives of process groups, sends
    and receives. A worker is a rank."""

    kind: Literal["graph"]
    algorithm: Literal["ring", "all_to_all", "halving"] = "ring"
    """Algorithm of all-reduces, reduce-scatters and all-gathers."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", f"is too small for {self.kind}", job.workers, "at least two workers")
        for key, value, expected in (
            ("accumulate", job.accumulate, 1),
            ("push_bound", job.push_bound, 0),
            ("pull_bound", job.pull_bound, 0),
            ("tagging.magnitude", job.tagging.magnitude, False),
            ("order", job.order, "fifo"),
        ):
            if value != expected:
                what = f"applies to gradients, and {self.kind} plays the graphs as they are"
                yield Mistake(key, what, expected=str(expected).lower())
        if job.scheduler is not None:
            what = f"would order gradients, and {self.kind} plays the graphs as they are"
            yield Mistake("scheduler", what, job.scheduler.kind, "to leave it out")

    def trace_conflicts(self, job: Job, trace: Any) -> Iterator[Mistake]:
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
        sizes = {len(call.members) for call in graphs.calls if call.kind in halves}
        if self.algorithm == "halving" and (odd := [size for size in sorted(sizes) if size & (size - 1)]):
            what = f"does not work for the {odd[0]} ranks of a process group"
            yield Mistake("exchange.algorithm", what, self.algorithm, "ring or all_to_all")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "algorithm", 0  # messages are checked once the graphs are known

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.traces.rank_graphs import SEND
        from gradwire.workload.collectives.common.model_parallel import count_call_transfers

        rails = setting.rails
        return sum(
            1 if call.kind == SEND else count_call_transfers(call.kind, self.algorithm, len(call.members), rails)
            for call in setting.trace.graphs.calls
        )

    def collective(self, context: Any) -> Any:
        from gradwire.workload.collectives.exchanges.graph_steps import GraphPlayback

        return GraphPlayback(context, self)
