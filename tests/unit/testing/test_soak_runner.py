"""Runs of the soak that are ended early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def workers_of(parent: int) -> list[int]:
    """Return the ids of a process's children that run cases."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads the children of a process from /proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_soak_ended_early_prints_its_counts_and_leaves_no_process(name: str, tmp_path: Path) -> None:
    """After SIGKILL nothing can be printed, but the workers end."""
    command = [sys.executable, "-m", "tests.soak", "--only", "readers", "--minutes", "9", "--jobs", "2"]
    with subprocess.Popen(
        [*command, "--log", str(tmp_path / "log.txt")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        while len(workers := workers_of(run.pid)) < 2:
            assert run.poll() is None
            time.sleep(0.05)
        time.sleep(3)
        os.kill(run.pid, getattr(signal, name))
        output, _ = run.communicate(timeout=120)
    if name == "SIGKILL":
        assert run.returncode == -signal.SIGKILL
    else:
        assert run.returncode == 0
        assert "interrupted" in output and "readers: " in output and " 0 failed" in output
    latest = time.monotonic() + 60
    while any(Path(f"/proc/{each}").exists() for each in workers) and time.monotonic() < latest:
        time.sleep(0.1)
    assert not [each for each in workers if Path(f"/proc/{each}").exists()]
