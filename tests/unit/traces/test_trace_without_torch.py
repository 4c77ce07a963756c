"""Traces are read, looked at, brought in and out without torch: only recording them needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gradwire

ROOT = Path(gradwire.__file__).resolve().parents[1]
READING = (
    "tools.diff",
    "tools.info",
    "tools.rank_merge",
    "tools.plot",
    "tagging",
    "storage.reader",
    "trace",
)  # and formats/

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it raises ImportError
"""


def in_fresh_interpreter(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code], capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_trace_readers_and_tools_import_without_torch() -> None:
    paths = sorted((ROOT / "traces" / "formats").rglob("[a-z]*.py"))
    formats = [".".join(path.relative_to(ROOT / "traces").with_suffix("").parts) for path in paths]
    assert len(formats) >= 5
    in_fresh_interpreter(
        "import importlib, gradwire.cli.commands.trace\n"
        + "\n".join(f"importlib.import_module('gradwire.traces.{name}')" for name in [*READING, *formats])
    )


def test_bundled_trace_is_inspected_and_plotted_without_torch(tmp_path: Path) -> None:
    printed = in_fresh_interpreter(f"""
from pathlib import Path
import gradwire
from gradwire.traces.tools.diff import diff
from gradwire.traces.tools.info import info
from gradwire.traces.tools.plot import plot_trace
trace = gradwire.load_trace("resnet50")
print(info(trace)["tensors"], diff(trace, trace)["identical"])
plot_trace(trace, Path({str(tmp_path / "pictures")!r}))
""")
    assert printed.split() == ["161", "True"]
    assert (tmp_path / "pictures" / "timeline.png").stat().st_size > 10_000
