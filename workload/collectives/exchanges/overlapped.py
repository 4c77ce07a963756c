"""The table `overlapped` declares overlapped averaging, in which each worker owns an N-th of every layer;
`overlapped_steps` builds its messages. It has all-to-alls of gradients after the backward pass, and all-gathers of
parameters before the next.

Lee, Agrawal, Balaprakash, Choudhary, Liao, "Communication-Efficient Parallelization Strategy for Deep Convolutional
Neural Network Training", MLHPC '18; facts marked [code] are from the authors' public code. Every worker owns an N-th of
every layer and stores the optimiser's state of that alone:

* convolutions: when a layer's gradient is ready, every worker sends each owner its N-th (an all-to-all, in effect a
  reduce-scatter);
* fully connected layers, n_in to n_out: their gradient is not exchanged at all. Every worker sends each owner the N-th
  of its activations' columns, during the forward pass (an all-to-all), and all errors, during the backward pass (an
  all-gather); the owner computes its N-th of the gradient over the batch of all workers by itself, and every worker
  that of the bias;
* after the backward pass workers update their parts, from the input on, and send every layer to all (an all-gather).
  Forward of a layer waits for this layer only [code].

One communication thread per worker does all of that: one operation at a time, in the order of requests, each when the
previous one is over at its worker [code].

A convolution of S bytes takes (N - 1)/N S to and from every worker after the backward pass and as many before the next
forward step, where an all-reduce has 2(N - 1)/N S before the next forward step begins. A fully connected layer takes
(N - 1)/N B n_in + (N - 1) B n_out values, B samples a worker, and (N - 1)/N S after the update: about half of an
all-reduce if the first two are small. On an idle network, where a message of m bytes takes a + m b and messages share a
line evenly, an operation in which every worker sends M bytes takes a + M b.

Our choices: an operation is over at a worker when it has received everything; all its messages are sent at once, to the
next worker first, as libraries do with messages of this size; layers of vectors alone, such as batch norms, travel with
the preceding layer; fully connected layers are those with a weight matrix; computing its N-th of such a gradient takes
a worker as long as computing its own samples' gradient (as many multiplications), so it stays in the backward step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.job.exchange import ExchangeTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job

SCHEDULERS = ("barrier", "fifo")
"""Schedulers that leave the order of operations to the communication thread."""


class Overlapped(ExchangeTable):
    """Lee et al.: each worker owns an N-th of every layer. All-to-alls of gradients overlap with the backward pass,
    all-gathers of updated parameters with the next forward pass."""

    kind: Literal["overlapped"]
    batch: Count
    """Samples per worker and step, which set the size of activations and errors of fully connected layers. Compute
    times are always those of the trace; scale them with `compute_scale`."""
    dense: Literal["activations", "gradients"] = "activations"
    """Data exchanged for fully connected layers: activations and errors, or gradients as for all other layers. Intended
    for networks that apply each weight matrix once per sample, such as image classifiers."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", f"is too small for {self.kind}", job.workers, "at least two workers")
        if job.accumulate > 1:
            what = f"sums gradients of several passes; {self.kind} sends each pass's activations and errors"
            yield Mistake("accumulate", what, job.accumulate, "1")
        if job.scheduler is not None and job.scheduler.kind not in SCHEDULERS:
            what = f"would reorder operations; the communication thread of {self.kind} has its own order"
            yield Mistake("scheduler", what, job.scheduler.kind, "none, fifo or barrier")
        for key in ("push_bound", "pull_bound"):
            if getattr(job, key) != 0:
                what = f"allows loss; {self.kind} also sends activations and parameters, which must all arrive"
                yield Mistake(key, what, expected="0")
        if job.tagging.magnitude:
            what = f"tags by magnitude; activations and parameters of {self.kind} have no recorded magnitudes"
            yield Mistake("tagging.magnitude", what, True, "false")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "batch", tensor  # of a layer; activations and errors are checked once their sizes are known

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.workload.collectives.exchanges.overlapped_steps import groups_of, operations_of

        workers, groups = len(setting.workers), groups_of(setting.trace.tensors, self.dense == "activations")
        return len(operations_of(groups, setting.ready_order, workers, self.batch)) * workers * (workers - 1)

    def simultaneous_messages(self, setting: Any) -> int:
        return len(setting.workers) * (len(setting.workers) - 1)

    def collective(self, context: Any) -> Any:
        from gradwire.workload.collectives.exchanges.overlapped_steps import OverlappedAveraging

        return OverlappedAveraging(context, self)
