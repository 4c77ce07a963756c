"""A cache of engines that another user has made: its files may be private, and nobody gets a traceback for it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from output_cases import ROOT, SMALL, gradwire_command

from gradwire.jit.engine_cache import ABOUT

NOBODY = 65534
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24  # of capabilities(7), prctl(2)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all may enter, with a scenario and a cache."""
    with tempfile.TemporaryDirectory(prefix="gradwire-shared-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "small.toml").write_text(SMALL)
        (place / "cache" / "engines").mkdir(parents=True)
        for each in (place / "cache", place / "cache" / "engines"):
            each.chmod(0o700)
        yield place


def gradwire(place: Path, *arguments: str, held: bool = True) -> subprocess.CompletedProcess[str]:
    """A command that is `held` to the permissions of files, as everybody but root is."""
    libc = ctypes.CDLL(None)

    def hold() -> None:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0

    environment = os.environ | {"GRADWIRE_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        gradwire_command(*arguments), cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=hold if held else None,
    )  # fmt: skip


def give_away(path: Path) -> None:
    """Make a file or folder another user's, who keeps it private."""
    path.chmod(0o600 if path.is_file() else 0o700)
    os.chown(path, NOBODY, NOBODY)


def test_unreadable_engines_of_another_user_count_as_absent(shared: Path):
    first = gradwire(shared, "run", "small.toml", held=False)
    assert first.returncode == 0, first.stderr
    engines = [each for each in (shared / "cache" / "engines").iterdir() if (each / ABOUT).is_file()]
    assert len(engines) == 1
    give_away(engines[0] / ABOUT)
    done = gradwire(shared, "run", "small.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert "compiled engines are not cached" in done.stderr
    for private in (engines[0] / ABOUT, engines[0]):
        give_away(private)
        listed = gradwire(shared, "cache")
        assert listed.returncode == 0, listed.stderr
        assert "created by another user" in listed.stderr
    assert gradwire(shared, "cache", held=False).stderr == ""
    give_away(shared / "cache" / "engines")
    refused = gradwire(shared, "cache")
    assert refused.returncode == 2 and f"belongs to user {NOBODY}" in refused.stderr
    assert gradwire(shared, "run", "small.toml", "--json").returncode == 0


def test_unreadable_cache_folder_yields_a_message(shared: Path):
    give_away(shared / "cache")
    for words in (("cache",), ("cache", "clear")):
        done = gradwire(shared, *words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert f"{shared / 'cache'}" in done.stderr
    from gradwire.jit.engine_cache import load

    assert load("an-engine", shared / "cache" / "engines") is None
