"""docs/architecture.md names functions and places that are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([a-z_.]+):(\w+)`", PAGE)))
PLACES = sorted(set(re.findall(r"`([a-z]+/[\w/.]*)`", PAGE)))


def test_there_is_something_to_look_at() -> None:
    assert len(NAMES) >= 18 and len(PLACES) >= 25


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_step_is_there(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"gradwire.{module}"), name)


@pytest.mark.parametrize("place", PLACES)
def test_a_place_is_there(place: str) -> None:
    assert (ROOT / place).exists()


def test_every_room_is_in_the_picture() -> None:
    rooms = {each.name for each in (ROOT / "gradwire").iterdir() if each.is_symlink()}
    picture = PAGE.split("Imports run downwards")[0] + PAGE.split("`testing/`")[0]
    assert {room for room in rooms if f"{room}/" not in picture} <= {"testing", "benchmarks"}
