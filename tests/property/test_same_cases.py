"""What a property test tries depends on the test alone: not on which modules happen to be loaded, nor on earlier runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from budgets import budget
from hypothesis import given, settings
from hypothesis import strategies as st

STRANGE = 7_654_321_987


def tried() -> list[Any]:
    """What a derandomised test draws."""
    drawn: list[Any] = []

    @budget(12)
    @given(st.integers(0, 2**40), st.sampled_from(("a", "b")), st.floats(0, 1))
    def note(number: int, letter: str, share: float) -> None:
        drawn.append((number, letter, share))

    note()
    return drawn


@pytest.fixture
def stranger(tmp_path: Path) -> Any:
    """A module of somebody's own, with a number of its own, loaded as a user's transport would be."""
    path = tmp_path / "stranger.py"
    path.write_text(f"NUMBER = {STRANGE}\n")
    spec = importlib.util.spec_from_file_location("a_stranger_to_all", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_loaded_modules_do_not_change_generated_cases(request: pytest.FixtureRequest) -> None:
    alone = tried()
    request.getfixturevalue("stranger")
    assert tried() == alone
    assert all(STRANGE not in values for values in alone)


def test_property_test_generates_the_same_cases_again() -> None:
    assert tried() == tried() and len(tried()) > 2 * settings.default.max_examples
