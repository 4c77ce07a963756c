"""What tests of the command line share: a scenario that runs in a moment, and commands in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from warm import Warm

import gradwire

ROOT = Path(gradwire.__file__).resolve().parents[1]

SMALL = """\
name = "small"
topology = { kind = "star", hosts = 3 }
transport = "dctcp"

[switch]
ecn_threshold = "64KiB"

[[traffic]]
name = "burst"
kind = "incast"
fan_in = 2
receiver = "h2"
size = "20kB"
"""


def gradwire_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gradwire", *arguments]


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """One command; fails if it takes longer than `timeout` seconds."""
    return Warm.ours().run(*arguments, timeout=timeout)


def same_but_timing(first: Path, second: Path) -> list[str]:
    """Names of files that differ between two folders, which have to have the same ones."""
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    return [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()]
