"""`WandbLog` writes one run with the client of Weights & Biases: offline, unless WANDB_MODE says otherwise.

Offline means that nothing is sent, not even W&B's reports of errors: `wandb sync` sends a run later. A run keeps its id
if it is resumed or logged again. Its offline copy is then replaced; online, steps that the server has are left out.
Losses and accuracy have simulated seconds as their default x axis.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gradwire.scenarios.errors import import_extra
from gradwire.studies.run_logs.logged_run import BY_TIME, LoggedRun

DEFAULT_PROJECT = "gradwire"
FINISH_S = 60.0
"""Longest wait for a server at the end of a run (our choice)."""


class WandbLog:
    """One run of a W&B project."""

    def __init__(self, run: LoggedRun, project: str = "") -> None:
        wandb = import_extra("wandb", "logging")
        mode = os.environ.get("WANDB_MODE") or "offline"
        folder = _folder()
        if mode == "offline":
            for earlier in _offline_copies(folder, run_id(run)):
                shutil.rmtree(earlier)
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            finish_timeout=FINISH_S,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            id=run_id(run),
            name=run.name,
            group=run.group,
            config={**run.config, **({"scenario": run.text} if run.text else {})},
            dir=str(folder),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=settings,
        )
        self._first = self._run.step
        self._has_time = False

    def write(self, step: int, values: Mapping[str, float], clock_s: float) -> None:
        if clock_s and not self._has_time:
            self._has_time = True
            for name in BY_TIME:
                self._run.define_metric(name, step_metric=f"{name.partition('/')[0]}/simulated_s")
        if step >= self._first:
            groups = {name.partition("/")[0] for name in values if name in BY_TIME and clock_s}
            self._run.log({**values, **{f"{group}/simulated_s": clock_s for group in groups}}, step=step)

    def close(self, summary: Mapping[str, float], step: int, complete: bool) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=0 if complete else 1)


def run_id(run: LoggedRun) -> str:
    """Return the id of a run: the same for the same folder, name and outcome."""
    return f"{run.identity}{run.key[:8]}"


def has_offline_copy(run: LoggedRun) -> bool:
    """Return True if a run has an offline copy here."""
    return bool(_offline_copies(_folder(), run_id(run)))


def _folder() -> Path:
    """Return the folder of W&B's files, absolute: its background process has a working directory of its own."""
    return Path(os.environ.get("WANDB_DIR") or ".").absolute()


def _offline_copies(folder: Path, id: str) -> list[Path]:
    return list((folder / "wandb").glob(f"offline-run-*-{id}"))
