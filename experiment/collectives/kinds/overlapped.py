"""Overlapped averaging: all-to-alls of gradients behind the backward pass, all-gathers of parameters before the next
one.

Lee, Agrawal, Balaprakash, Choudhary, Liao, "Communication-Efficient Parallelization Strategy for Deep Convolutional
Neural Network Training", MLHPC '18; what is marked so is from the authors' public code [code]. Every worker owns an
N-th of every layer and keeps the optimiser's state of that alone:

* convolutions: when a layer's gradient is ready, every worker sends everybody the N-th that is theirs (an
  all-to-all, a reduce-scatter in effect);
* fully connected layers, n_in to n_out: their gradient is not exchanged at all. Every worker sends everybody the N-th
  of its activations' columns that is theirs, during the forward pass (an all-to-all), and all errors, during the
  backward pass (an all-gather); the owner works out its N-th of the gradient over the batch of all workers by itself,
  and everybody that of the bias;
* after the backward pass workers update what they own, from the input on, and hand every layer to everybody (an
  all-gather). Forward of a layer waits for that of this layer only [code].

All of that is carried out by one communication thread per worker: one operation at a time, in the order in which they
are asked for, and the next one when this one is over at its worker [code].

A convolution of S bytes takes (N - 1)/N S to and from every worker behind the backward pass and as many before the
next forward step, where an all-reduce has 2(N - 1)/N S before the next forward step begins. A fully connected layer
takes (N - 1)/N B n_in + (N - 1) B n_out values, B samples a worker, and (N - 1)/N S behind the update: about half of
an all-reduce where the first two are small. On an idle network, where a message of m bytes takes a + m b and messages
share a line evenly, an operation in which every worker sends M bytes takes a + M b.

Our choices: an operation is over at a worker when all that it gets has arrived; all its messages are sent at once, to
the next worker first, as libraries do with messages of this size; layers of vectors alone, such as batch norms,
travel with the layer before; fully connected layers are those with a weight matrix; working out its N-th of such a
gradient takes a worker as long as working out its own samples' gradient - as many multiplications - and is left where
that was, in the backward step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.exchange import ExchangeTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job

SCHEDULERS = ("barrier", "fifo")
"""Those that leave the order of operations to the communication thread."""


class Overlapped(ExchangeTable):
    """Lee et al.: workers own an N-th of every layer each; all-to-alls of gradients overlap with the backward pass,
    all-gathers of updated parameters with the next forward pass."""

    kind: Literal["overlapped"]
    batch: Count
    """Samples of a worker in a step: so many activations and errors fully connected layers have. Compute times are the
    trace's, whatever it is: `compute_scale` makes them fit."""
    dense: Literal["activations", "gradients"] = "activations"
    """What is exchanged of fully connected layers: activations and errors, or gradients as of all others. It is meant
    for networks that apply each weight matrix once to a sample, as image classifiers do."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", f"makes no {self.kind}", job.workers, "at least two workers")
        if job.accumulate > 1:
            what = f"adds up gradients of several passes: {self.kind} sends each pass's activations and errors"
            yield Mistake("accumulate", what, job.accumulate, "1")
        if job.scheduler is not None and job.scheduler.kind not in SCHEDULERS:
            what = f"would order what the communication thread of {self.kind} has in its own order"
            yield Mistake("scheduler", what, job.scheduler.kind, "none, fifo or barrier")
        for key in ("push_bound", "pull_bound"):
            if getattr(job, key) != 0:
                what = f"allows loss: {self.kind} sends activations and parameters, too, and all of it arrives"
                yield Mistake(key, what, expected="0")
        if job.tagging.magnitude:
            what = f"tags by magnitude, which activations and parameters of {self.kind} have none of"
            yield Mistake("tagging.magnitude", what, True, "false")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "batch", tensor  # of a layer; activations and errors are looked at where their sizes are known

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.experiment.collectives.operations import groups_of, operations_of

        workers, groups = len(setting.workers), groups_of(setting.trace.tensors, self.dense == "activations")
        return len(operations_of(groups, setting.ready_order, workers, self.batch)) * workers * (workers - 1)

    def at_once(self, setting: Any) -> int:
        return len(setting.workers) * (len(setting.workers) - 1)

    def collective(self, context: Any) -> Any:
        from gradwire.experiment.collectives.overlapped import OverlappedAveraging

        return OverlappedAveraging(context, self)
