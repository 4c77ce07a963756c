"""Step rows of synchronous systems that count their own bytes."""

from __future__ import annotations

from gradwire.training.trainer import StepRow, Trainer


def finish_step(trainer: Trainer, loss: float, rate: float, sent: int, pulled: int, time_ps: int) -> StepRow:
    """Count a step of a trainer and return its row; `trainer.lost` holds its losses."""
    number = trainer.done
    trainer.done += 1
    trainer.clock_ps += time_ps
    trainer.sent_bytes += sent
    trainer.pulled_bytes += pulled
    infos, workers = trainer.infos, trainer.recipe.workers
    lost = sum(share * info.numel for row in trainer.lost for share, info in zip(row, infos, strict=True))
    lost /= sum(info.numel for info in infos) * workers
    return StepRow(number, loss, sent, lost, time_ps, trainer.clock_ps, rate, pulled_bytes=pulled)
