"""docs/architecture.md names functions and places that are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from gradwire.scenarios.loading.registry import components

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([a-z_.]+):(\w+)`", PAGE)))
PLACES = sorted(set(re.findall(r"`([a-z]+/[\w/.]*)`", PAGE)))


def test_architecture_page_names_functions_and_paths() -> None:
    assert len(NAMES) >= 18 and len(PLACES) >= 25


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_functions_named_in_architecture_page_exist(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"gradwire.{module}"), name)


@pytest.mark.parametrize("place", PLACES)
def test_paths_named_in_architecture_page_exist(place: str) -> None:
    assert (ROOT / place).exists()


def test_architecture_page_lists_every_package() -> None:
    rooms = {each.name for each in (ROOT / "gradwire").iterdir() if each.is_symlink()}
    table = PAGE.split("Imports run")[0]
    assert {room for room in rooms if f"`{room}/`" not in table} == {"benchmarks"}


MACHINERY = {
    "__init__", "base", "persistent_state", "reliable", "sent_times",  # of every transport, or of several
    "bindings", "engine", "event_log", "connection",  # of every engine
    "variants", "receiver", "sender",  # what the rules of Linux are put together by
}  # fmt: skip
"""Modules in which no rule is that somebody would look for."""


@pytest.mark.parametrize("room", ["protocols/transports", "sim/engine/core"])
def test_every_protocol_module_is_named_in_architecture_page(room: str) -> None:
    """A transport's own file has the transport's name; the page names shared and switch modules."""
    kinds = {"bbr", *components("transport")}
    modules = {each.stem for each in (ROOT / room).rglob("*.py") if not each.stem.endswith("layout")}
    named = {Path(place).stem for place in PLACES if place.startswith(f"{room}/")}
    named |= {module.rpartition(".")[2] for module, _ in NAMES}
    assert modules - named - kinds - MACHINERY == set()
