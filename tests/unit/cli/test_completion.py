"""Completion of names by a shell: the functions, every option that takes one, and bash's protocol once."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.cli.clusters.collective import preset_policy_names
from gradwire.cli.options import NAMED_KEYS, library_names, override_names, policy_names, trace_names
from gradwire.scenarios.loading.load import list_library, load_scenario, load_tables
from gradwire.scenarios.loading.registry import components


def context(*args: str, **params: Any) -> Any:
    return SimpleNamespace(args=list(args), params=params)


def test_names_are_those_that_commands_accept() -> None:
    assert library_names("") == list_library() and library_names("dem") == ["demo", "demo-cpu"]
    assert "resnet20" in trace_names("resnet") and trace_names("nothing") == []
    policies = [policy["name"] for policy in load_tables("demo")["policy"]]
    assert policy_names(context("demo"), "") == policies
    assert policy_names(context(scenario="demo"), "dl") == ["dlcp"]
    assert policy_names(context("no-such-scenario"), "") == policy_names(context(), "") == []
    both = preset_policy_names(context(on=["h100-rail"]), "")
    assert both[0] == "all" and set(both) <= set(preset_policy_names(context(), ""))
    assert preset_policy_names(context(on=["none.toml"]), "") == ["all"]


def test_overrides_complete_keys_and_then_their_names() -> None:
    """Every completed transport is one that a scenario accepts; a key without names completes nothing."""
    assert "transport=" in override_names("tr") and "traffic." in override_names("tr")
    assert override_names("link.") == ["link."] and override_names("link.rate=") == []
    assert override_names("transport=dct") == ["transport=dctcp"]
    assert override_names("transport=") == [f"transport={name}" for name in components("transport")]
    for override in override_names("load_balancing="):
        assert load_scenario("demo", set=[override]).load_balancing == override.partition("=")[2]
    assert all(override_names(f"{key}=") for key in NAMED_KEYS)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("gradwire run dem", "demo"),
        ("gradwire run demo --policy dl", "dlcp"),
        ("gradwire sweep tail", "tail-load"),
        ("gradwire collective all_reduce --on h100-r", "h100-rail"),
        ("gradwire trace diff resnet20 resnet2", "resnet20"),
        ("gradwire trace export resnet20 --format cha", "chakra"),
        ("gradwire train train-tiny --log tens", "tensorboard"),
        ("gradwire run demo --set trans", "transport="),
    ],
)
def test_bash_gets_names(words: str, expected: str) -> None:
    """The program answers as bash asks it, without running anything."""
    count = str(len(words.split()) - 1)
    asked = os.environ | {"_GRADWIRE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    code = "import sys; sys.argv = ['gradwire']; from gradwire.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, timeout=100)
    assert expected in done.stdout.split() and not done.stderr
