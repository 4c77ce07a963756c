"""A small reproduction that takes no data, in a process that can be stopped at a step by any signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from gradwire.studies.reproduce.claim import Claim, Setting

TRAINING: dict[str, Any] = {
    "model": "resnet8", "data": "synthetic", "size": 8, "samples": 200, "batch": 4, "steps": 6, "augment": False,
    "network": "ideal", "score_every": 4,
}  # fmt: skip
CLAIM = Claim(
    "T", "[ours]", "s", "p",
    (Setting("tiny", "train-tiny", ("lossless", "p0.3"), {"training": TRAINING, "job": {"workers": 2}}, True),), (), "accuracy",
)  # fmt: skip


@contextmanager
def interrupted(after: int, send: int = 0) -> Iterator[None]:
    """While it lasts, the step after so many raises KeyboardInterrupt, or sends this process a signal."""
    from gradwire.training.trainer import Trainer

    step, made = Trainer.step, 0

    def counted(self: Trainer) -> Any:
        nonlocal made
        made += 1
        if made > after:
            if not send:
                raise KeyboardInterrupt
            os.kill(os.getpid(), send)
        return step(self)

    Trainer.step = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer.step = step  # type: ignore[method-assign]


def main(at: str, after: int) -> None:
    """`gradwire` with this claim instead of all others. `at`: name of the signal that ends it in the step after so many;
    none if empty. Of each kind of training that is not over two steps are made to time it."""
    import gradwire.studies.reproduce as claims
    from gradwire.cli import main as command
    from gradwire.studies.training import cost_estimate

    claims.claims_of = lambda name, chosen=(): [CLAIM]  # type: ignore[assignment]
    cost_estimate.TIMED_STEPS = 1
    with interrupted(after, getattr(signal, at)) if at else nullcontext():
        command()
