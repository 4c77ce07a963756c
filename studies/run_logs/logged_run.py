"""`LoggedRun` identifies a run in its logs."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BY_TIME = ("train/loss", "validation/accuracy", "validation/loss")
"""Values that people also want against simulated time."""


@dataclass(frozen=True)
class LoggedRun:
    """Identity of a run in its logs.

    name : readable, unique among the runs of one command.
    group : of runs that belong together.
    config : parameters by name.
    folder : of its results; None if they are not stored.
    text : scenario or sweep as TOML.
    key : of its outcome, if the same name may stand for different ones.
    identity : the same for the same folder and name.
    """

    name: str
    group: str
    config: Mapping[str, Any]
    folder: Path | None = None
    text: str = ""
    key: str = ""
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        source = f"{self.folder.resolve()} {self.name}" if self.folder is not None else uuid.uuid4().hex
        object.__setattr__(self, "identity", hashlib.sha256(source.encode()).hexdigest()[:12])
