"""Folders of commands that were killed: the next may have them at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from output_cases import SMALL, run

from gradwire.result_store.folders.resumable_folder import resumable_folder
from gradwire.result_store.result import Result


def test_empty_folder_of_a_killed_run_can_be_claimed():
    """The folder was claimed and is empty; its lock ended with the process."""
    code = "import os, signal; from gradwire.result_store.folders.output_folder import Claim; Claim('out').__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == -9
    assert list(Path("out").iterdir()) == []
    Path("small.toml").write_text(SMALL)
    done = run("run", "small.toml", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert Result.read("out").summary["name"] == "small"


@pytest.mark.parametrize("place", ["Claim('out')", "resumable_folder('out', '.mark', 'a sweep')"])
def test_folder_of_a_killed_run_can_be_claimed_while_its_children_run(place: str):
    """A child process, such as a compiling one, may outlive the run."""
    code = (
        "import os, time\nfrom gradwire.result_store.folders.resumable_folder import resumable_folder\n"
        f"from gradwire.result_store.folders.output_folder import Claim\nwith {place}:\n    if not os.fork():\n"
        "        print(os.getpid(), flush=True)\n    time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        child = int(killed.stdout.readline())
        killed.kill()
        assert killed.wait(timeout=60) == -signal.SIGKILL
        try:
            with resumable_folder("out", ".mark", "a sweep"):
                pass
        finally:
            os.kill(child, signal.SIGKILL)
