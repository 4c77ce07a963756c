"""Without root: virtual time by a user without any rights, the wall clock by one who may make namespaces of his own."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from emu_cases import needs
from emu_commands import NO_RIGHTS, SHORT

from gradwire.scenarios.cache import cache_folder

NOBODY = 65534
ROOTS_HOME = Path(pwd.getpwuid(0).pw_dir)
ROOT = Path(__file__).resolve().parents[2]
UNEVEN = """
[[link_override]]
between = ["h2", "s0"]
latency = "433us"
"""
"""Two equal senders meet at every packet, and who goes first is chance in the simulator, and never chance in a kernel
whose time stands still meanwhile: so they do not meet here."""
TUN = """
mount --make-rprivate /
mount -t tmpfs -o mode=755 devices {place}/devices
mknod -m 666 {place}/devices/tun c 10 200
mount --bind {place}/devices/tun /dev/net/tun
"""
"""TUN devices for everybody, as most distributions have it, for this command."""
HOME = """
mount --make-rprivate /
mount --bind {base} {place}/python
mount -t tmpfs -o mode=755 home {home}
mkdir -p {base}
mount --bind {place}/python {base}
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
    for name in ("python", "devices"):
        (made / name).mkdir()
    (made / "short.toml").write_text(SHORT + UNEVEN)
    copy_cache(made / "cache")
    for path in (made, *made.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def copy_cache(target: Path) -> None:
    """Copy what is compiled and built, but for what goes meanwhile: tests beside this one throw old engines out."""
    source = cache_folder()
    for folder, _, names in os.walk(source, followlinks=True):
        copied = target / Path(folder).relative_to(source)
        copied.mkdir(parents=True, exist_ok=True)
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copy2(Path(folder, name), copied / name)


def as_nobody(
    place: Path, *arguments: str, rights: Sequence[str] = NO_RIGHTS, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """gradwire ..., in the folder."""
    words = {"base": sys.base_prefix, "place": str(place), "home": str(ROOTS_HOME)}
    script = before + (HOME if Path(sys.base_prefix).is_relative_to(ROOTS_HOME) else "") + 'exec "$@"'
    script = script.format(**{name: shlex.quote(word) for name, word in words.items()})
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "GRADWIRE_CACHE": str(place / "cache")}
    variables |= {"HOME": str(place), "TMPDIR": str(place), "NUMBA_CACHE_DIR": str(place / "numba")}
    around = ["unshare", "--mount", "sh", "-e", "-c", script, "sh"]
    user = [*rights, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run(
        [*around, *user, sys.executable, "-m", "gradwire", *arguments],
        cwd=place, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@needs("uml")
def test_unprivileged_user_runs_testbed_in_virtual_time(place: Path) -> None:
    ran = as_nobody(place, "fidelity", "short.toml", "--clock", "virtual", "--out", str(place / "out"))
    assert ran.returncode == 0, ran.stderr
    assert "passed" in ran.stdout
    assert (place / "out" / "fidelity.png").stat().st_uid == NOBODY
    ran = as_nobody(place, "emulate", "short.toml", "--clock", "virtual", "--pcap", "captures")
    assert ran.returncode == 0, ran.stderr
    assert (place / "captures" / "s0.pcapng").stat().st_size > 100_000


def test_error_names_rights_missing_for_wall_clock(place: Path) -> None:
    ran = as_nobody(place, "emulate", "short.toml", "--switch", "bpf")
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert any(what in line for what in ("cannot create private namespaces", "no BPF program: the kernel rejects"))
    assert "--clock virtual" in line


@needs("namespaces", "tun")
def test_user_with_namespaces_runs_testbed_on_wall_clock(place: Path) -> None:
    may = subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "unshare", "--user", "true"],
        capture_output=True, check=False,
    )  # fmt: skip
    if may.returncode:
        pytest.skip("this kernel lets only root make namespaces")
    command = ("emulate", "short.toml", "--switch", "userspace", "--repeat", "1", "--pcap", "captures")
    ran = as_nobody(place, *command, rights=["setpriv"], before=TUN)
    assert "on real sockets: wall clock, switches userspace" in ran.stdout, ran.stderr
    valid = ran.returncode == 0
    assert valid or "not valid:" in ran.stderr  # he has no real-time priority
    assert valid or "with a lower link.rate or fewer hosts (see testbed-wall)" in ran.stderr
    assert (place / "captures" / "s0.pcapng").stat().st_size > 100_000
    assert (place / "captures" / "s0.pcapng").stat().st_uid == NOBODY
