"""The fork server of tests: code in its processes does what it does in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from warm import Warm

HEAD = """
import pickle, sys, threading
import beside

class Mine:
    pass

assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
beginning = threading.Thread(target=lambda: print("a thread"))
beginning.start()
beginning.join()
print(sys.argv, __name__, sys.path[0], beside.__file__)
"""


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "sys.exit('no')", "1 / 0", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]
)
def test_fork_server_runs_code_like_a_fresh_interpreter(end: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    arguments = ["-c", HEAD + end, "one", "--two"]
    ours = Warm.ours().run(*arguments)
    theirs = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]
