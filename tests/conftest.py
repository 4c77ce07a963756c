"""Settings shared by all tests: where the working directory is, and how Hypothesis behaves under load."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Compiling a kernel inside an example takes seconds on a busy machine; deadlines would only flake.
settings.register_profile("gradwire", deadline=None)
# For a longer look: pytest tests/property --hypothesis-profile thorough
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("gradwire")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a temporary directory of its own, so that tests can run side by side."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
