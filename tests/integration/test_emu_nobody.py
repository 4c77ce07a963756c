"""Virtual time without root: everything by a user without any rights, who is root in a namespace of his own at most."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from emu_cases import needs
from emu_commands import NO_RIGHTS, SHORT

from emu.bpf import cache_directory

NOBODY = 65534
ROOTS_HOME = Path(pwd.getpwuid(0).pw_dir)
ROOT = Path(__file__).resolve().parents[2]
HOME = """
mount --make-rprivate /
mount --bind {base} {place}/python
mount -t tmpfs -o mode=755 home {home}
mkdir -p {base}
mount --bind {place}/python {base}
exec "$@"
"""
"""Root's home, which others may not enter, is emptied for this command, but for the interpreter."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of nobody's, with a scenario and what is compiled and built of the testbed."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else; whoever runs this has no rights anyway")
    for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
        for folder in (path, *path.parents):
            if not folder.stat().st_mode & 1 and folder != ROOTS_HOME:
                pytest.skip(f"nobody may enter {folder}")
    if ROOT.is_relative_to(ROOTS_HOME):
        pytest.skip("the project lies in root's home, which is emptied for this")
    made = Path(tempfile.mkdtemp(prefix="gradwire-nobody-"))
    (made / "python").mkdir()
    (made / "short.toml").write_text(SHORT)
    shutil.copytree(cache_directory(), made / "cache")
    for path in (made, *made.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def as_nobody(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """gradwire ..., in the folder."""
    hidden = Path(sys.base_prefix).is_relative_to(ROOTS_HOME)
    words = {"base": sys.base_prefix, "place": str(place), "home": str(ROOTS_HOME)}
    home = HOME.format(**{name: shlex.quote(word) for name, word in words.items()})
    around = ["unshare", "--mount", "sh", "-e", "-c", home, "sh"] if hidden else []
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "GRADWIRE_CACHE": str(place / "cache")}
    variables |= {"HOME": str(place), "TMPDIR": str(place), "NUMBA_CACHE_DIR": str(place / "numba")}
    user = [*NO_RIGHTS, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run(
        [*around, *user, sys.executable, "-c", "import gradwire; gradwire.main()", *arguments],
        cwd=place, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@needs("uml")
def test_a_user_without_rights_runs_the_testbed_in_virtual_time(place: Path) -> None:
    ran = as_nobody(place, "fidelity", "short.toml", "--clock", "virtual", "--out", str(place / "out"))
    assert ran.returncode == 0, ran.stderr
    assert "passed" in ran.stdout
    assert (place / "out" / "fidelity.png").stat().st_uid == NOBODY
    ran = as_nobody(place, "emulate", "short.toml", "--clock", "virtual", "--pcap", "captures")
    assert ran.returncode == 0, ran.stderr
    assert (place / "captures" / "s0.pcapng").stat().st_size > 100_000


def test_and_is_told_what_he_lacks_for_the_wall_clock(place: Path) -> None:
    ran = as_nobody(place, "emulate", "short.toml")
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert "private namespaces cannot be made" in line and "--clock virtual" in line
