"""A program that is killed at one of the files that it replaces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Killed:
    """Counts the files that are replaced, and raises KeyboardInterrupt instead of replacing one of them.

    done : files so far. at : the number of the one, from 1; 0 for none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self.at, self._replace = 0, 0, os.replace
        monkeypatch.setattr("gradwire.result_store.folders.output_folder.os.replace", self)

    def __call__(self, *paths: Path) -> None:
        self.done += 1
        if self.done == self.at:
            raise KeyboardInterrupt
        self._replace(*paths)

    def next(self, at: int) -> None:
        """Count anew, up to that file."""
        self.done, self.at = 0, at
