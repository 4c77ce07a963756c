"""Trials of mutants in a copy of the tree: one at a time, until a test fails or takes far too long."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation import limit, profile, reach
from tests.mutation.hits import marked
from tests.mutation.mutants import Mutant, sources_of

ROOT = Path(__file__).resolve().parents[2]
KILLED, TIMED_OUT, SURVIVED, UNREACHED = "killed", "timed out", "survived", "unreached"
MARKERS = "not wall and not slow"
GRACE_S, FACTOR = 15, 10
"""A test may take so many seconds more than so many times what it took when it was recorded."""
START_S = 120
PROFILE = ["-p", "tests.mutation.profile", "--hypothesis-profile", profile.NAME]
ENGINES = {"GRADWIRE_TEST_ENGINES": "plain"}


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. `killer`: the test that failed or did not end; `tests`: how many were to run."""

    verdict: str
    killer: str
    tests: int
    seconds: float


class Copy:
    """A copy of a tree, in which one file at a time is changed."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._folder = folder
        shutil.rmtree(self.root, ignore_errors=True)
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0"):
            if (root / name).is_symlink() or (root / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.root / name, follow_symlinks=False)

    def record(self, out: Path, tests: list[str]) -> None:
        """Run tests of `make test` and record which reach which lines."""
        statements, sources = self._folder / "statements.json", {}
        lines: list[tuple[str, int]] = []
        for path in sources_of(self.root):
            sources[path] = path.read_bytes()
            source, numbers = marked(sources[path].decode(), len(lines))
            lines += [(str(path.relative_to(self.root)), line) for line in numbers]
            path.write_text(source, encoding="utf-8")
        statements.write_text(json.dumps(lines), encoding="utf-8")
        options = [*PROFILE, "-p", "tests.mutation.reach", "-m", MARKERS, *tests]
        self._pytest(options, {reach.OUT: str(out), reach.STATEMENTS: str(statements)}, None)
        for path, original in sources.items():
            path.write_bytes(original)
        if not out.exists():
            raise SystemExit("the tests could not be recorded")

    def try_out(self, mutant: Mutant, tests: list[tuple[str, float]]) -> Verdict:
        """Run tests with a mutant in place until one fails."""
        if not tests:
            return Verdict(UNREACHED, "", 0, 0.0)
        seconds = {name: GRACE_S + FACTOR * usual for name, usual in tests}
        (self._folder / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
        options = [*PROFILE, "-x", "-p", "tests.mutation.limit"]
        environment = {limit.SECONDS: str(self._folder / "seconds.json"), "PYTHONDONTWRITEBYTECODE": "1"}
        started = time.perf_counter()
        with self._changed(mutant):
            most = START_S + FACTOR * sum(usual for _, usual in tests)
            code, said = self._pytest([*options, *(name for name, _ in tests)], environment, most)
        spent = round(time.perf_counter() - started, 1)
        if code == 0:
            return Verdict(SURVIVED, "", len(tests), spent)
        lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ", "TIMED OUT "))]
        killer = lines[0][:200] if lines else said.strip()[-200:]
        return Verdict(TIMED_OUT if code in (None, limit.TIMED_OUT) else KILLED, killer, len(tests), spent)

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.path
        source = path.read_bytes()
        path.write_bytes(mutant.apply(source))
        try:
            yield
        finally:
            path.write_bytes(source)

    def _pytest(self, options: list[str], more: dict[str, str], most: float | None) -> tuple[int | None, str]:
        """Run pytest in the copy; its exit status, None if it took too long, and its output."""
        environment = os.environ | ENGINES | more
        paths = os.pathsep.join([str(self.root), str(ROOT)])  # of the plugins, for another tree
        environment |= {"PYTHONPATH": paths, "GRADWIRE_CACHE": str(self._folder / "cache")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
        with (self._folder / "output.txt").open("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            code: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(most)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            return code, output.read()
