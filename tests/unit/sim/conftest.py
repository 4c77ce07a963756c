"""What tests of engines begin with."""

from __future__ import annotations

import pytest

from gradwire.jit import engine_cache
from gradwire.sim.engine import specialization


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered of engines loaded before."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine_cache, "_private", [])
    specialization._load.cache_clear()
    yield tmp_path / "cache" / "engines"
    specialization._load.cache_clear()
