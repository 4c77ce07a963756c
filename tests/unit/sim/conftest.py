"""What tests of engines begin with."""

from __future__ import annotations

import pytest

from gradwire.components import engines
from gradwire.sim.fabric import specialise


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered of engines loaded before."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engines, "_private", [])
    specialise._load.cache_clear()
    yield tmp_path / "cache" / "engines"
    specialise._load.cache_clear()
