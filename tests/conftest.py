"""Settings shared by all tests: where the working directory is, that Ctrl-C works, and how Hypothesis behaves under
load."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import engines
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.slow_tests import listed_tests

# Torch, in tests and in what they start, on one thread: threads of several tests on few processors spin while they wait for
# each other, and a test of seconds takes minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compiling a kernel inside an example takes seconds on a busy machine; deadlines would only flake.
settings.register_profile("gradwire", deadline=None)
# For a longer look: pytest tests/property --hypothesis-profile thorough, or python -m tests.soak
settings.register_profile("thorough", deadline=None, max_examples=2000)
# What `make test` uses; `make test-full` takes the profile gradwire.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("gradwire")
# Hypothesis also tries the constants that it finds in whatever modules of this folder are loaded. Then what a property
# test tries, derandomised or not, depends on which other tests run in its process; a test holds that it does not.
providers._get_local_constants = lambda: providers._local_constants


# A shell without job control has what it starts in the background ignore Ctrl-C, and so would everything that tests
# start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WALL = {
    "test_emu_bpf", "test_emu_capture", "test_emu_controller", "test_emu_dlcp", "test_emu_probe", "test_emu_sockets", "test_emu_tcp",
    "test_emu_ends", "test_emu_exec", "test_emu_userspace_late", "test_emu_userspace_tun", "test_emu_wall_agreement",
}  # fmt: skip
"""Modules in which packets go through this machine's kernel at the pace of its clock: marked `wall`, but for tests that
are marked `virtual` or `beside`."""


TESTS = Path(__file__).resolve().parent
WALL_PLACES = [TESTS / each for each in ("testbed", "unit/emu", "unit/scenarios/test_components.py")]
"""Where tests marked `wall` lie: `-m wall` looks for them there alone, and does not import all the others."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile") == "quick":
        os.environ.setdefault(engines.MODE, "few")
    engines.install()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr != "wall":
        return None
    near = any(collection_path.is_relative_to(place) or place.is_relative_to(collection_path) for place in WALL_PLACES)
    return None if near else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = listed_tests()
    for item in items:
        if item.nodeid.split("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
        if item.path.is_relative_to(TESTS / "property"):
            item.add_marker(pytest.mark.property)
        if item.path.stem in WALL and not (item.get_closest_marker("virtual") or item.get_closest_marker("beside")):
            item.add_marker(pytest.mark.wall)
        if item.get_closest_marker("wall") and not any(item.path.is_relative_to(place) for place in WALL_PLACES):
            raise pytest.UsageError(f"{item.nodeid}: is marked wall, but lies outside of WALL_PLACES")
    # The longest first: at the end workers take from each other what is left, and minutes of one test cannot be shared.
    items.sort(key=lambda item: not item.path.is_relative_to(TESTS / "testbed"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays, half a million objects: the garbage collector need not go through them, neither
    meanwhile, which is a third of the time, nor ever after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a temporary directory of its own, so that tests can run side by side."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
