"""Check a release and write it to `dist/`: `make release-check`.

    python -m tests.release_check [--python PATH ...] [--out DIR]

It builds the source distribution and the wheel from the tracked files and compares their contents with these files.
Then it installs the wheel for every Python at hand and runs the demo there, and runs tests of the unpacked source
distribution. Every step runs although an earlier one failed; the exit status is 1 if any did.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETUP = runpy.run_path(str(ROOT / "setup.py"))
SDIST_LIMIT, WHEEL_LIMIT, FILE_LIMIT = 40_000_000, 40_000_000, 10_000_000
"""Bytes of an artefact, and of one file of the source distribution. Bundled traces are 28 MB of both artefacts."""
SDIST_TESTS = ("tests/unit/scenarios", "-m", "not slow and not wall", "--hypothesis-profile", "quick")
"""Arguments of pytest for the tests of the unpacked source distribution."""
PYTHONS = [f"python3.{minor}" for minor in range(11, 20)]


class Problem(Exception):
    """A step failed; the text says why."""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, limit_s: int = 1200) -> str:
    """Run a command and return its output, of both streams. Raise Problem with its last lines if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Problem(f"{' '.join(words)}: {error}") from None
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise Problem(f"{' '.join(words)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def tracked_files() -> list[str]:
    """Return the files that git tracks and that exist, relative to the root; none outside of a git checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    inside = listed.returncode == 0 and (ROOT / ".git").exists()
    return [name for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)] if inside else []


def packages() -> dict[str, str]:
    """Return the folders that `gradwire/` links to, by the name of the link."""
    return {path.name: path.resolve().name for path in (ROOT / "gradwire").iterdir() if path.is_symlink()}


def packaged(tracked: Iterable[str]) -> set[str]:
    """Return the tracked files that the wheel has to contain: all of the packages but pages about their code."""
    names = {f"gradwire/{name}" for name in tracked if name.partition("/")[0] in packages().values()}
    names |= {name for name in tracked if name.startswith("gradwire/") and not (ROOT / name).is_symlink()}
    return {name for name in names if not name.endswith(".md") or "/bundled/" in name}


def copy_files(names: Iterable[str], target: Path) -> Path:
    """Copy files of the root to a folder, links as links, and return the folder."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def build(tree: Path, out: Path, *options: str) -> list[Path]:
    """Build a tree and return the artefacts: the source distribution and the wheel built from it, or those of options.

    The times inside are those of the newest commit, so that the same commit gives the same wheel.
    """
    stamp = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True).stdout
    env = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", stamp.strip() or "1700000000")}
    run(sys.executable, "-m", "build", *options, "--outdir", out, tree, cwd=tree, env=env)
    return [*out.glob("*.tar.gz"), *out.glob("*.whl")]


def unpack(sdist: Path, target: Path) -> Path:
    """Unpack a source distribution and return its tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    return target / sdist.name.removesuffix(".tar.gz")


def sdist_problems(sdist: Path, tracked: Iterable[str]) -> list[str]:
    """Return what a source distribution lacks or has besides the tracked files and its metadata."""
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive if not member.isdir()}
    wanted = set(tracked)
    made = {name for name in members if name in ("PKG-INFO", "setup.cfg") or name.startswith("gradwire.egg-info/")}
    return [
        *(f"lacks {name}" for name in sorted(wanted - set(members))),
        *(f"has the unwanted {name}" for name in sorted(set(members) - wanted - made)),
        *(f"{name} has {m.size:,} bytes; expected at most {FILE_LIMIT:,}" for name, m in members.items() if m.size > FILE_LIMIT),
        *_too_large(sdist, SDIST_LIMIT),
    ]  # fmt: skip


def wheel_problems(wheel: Path, tracked: Iterable[str]) -> list[str]:
    """Return what a wheel lacks or has besides: it is package gradwire with all files that code reads."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    return [
        *(f"lacks {name}" for name in sorted(packaged(tracked) - names)),
        *(f"has the unwanted {name}" for name in sorted(names - packaged(tracked))),
        *_too_large(wheel, WHEEL_LIMIT),
    ]


def _too_large(path: Path, limit: int) -> list[str]:
    size = path.stat().st_size
    return [f"{path.name} has {size:,} bytes; expected at most {limit:,}"] if size > limit else []


def version_problems(version: str, changelog: str, citation: str, *, released: bool = True) -> list[str]:
    """Return where the newest section of the changelog and CITATION.cff disagree with the version.

    A section `Unreleased` above is left out. With `released`, both have to name the day of the release.
    """
    sections = re.findall(r"^## \[?([^]\s]+)\]?(?: - (.+))?$", changelog, re.MULTILINE)
    name, day = next((found for found in sections if found[0].lower() != "unreleased"), ("no section", ""))
    keys = dict(re.findall(r"^(version|date-released): *[\"']?([^\"'\n]+)", citation, re.MULTILINE))
    is_day = re.fullmatch(r"\d{4}-\d\d-\d\d", day)
    wrong = []
    if name != version:
        wrong.append(f"CHANGELOG.md: the newest version is {name}; expected {version}")
    if keys.get("version") != version:
        wrong.append(f"CITATION.cff: version is {keys.get('version')}; expected {version}")
    if keys.get("date-released", "") != (day if is_day else ""):
        wrong.append(f"CITATION.cff: date-released is {keys.get('date-released')}; CHANGELOG.md has {day or 'no date'}")
    if released and not is_day:
        wrong.append(f"CHANGELOG.md: {name} is dated {day or 'nowhere'}; expected '## {version} - YYYY-MM-DD'")
    return wrong


def pythons_at_hand() -> dict[str, str]:
    """Return the Pythons from 3.11 on PATH that start, and this one, by their version."""
    found: dict[str, str] = {}
    for name in (sys.executable, *PYTHONS):
        code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([name, "-c", code], capture_output=True, text=True) if shutil.which(name) else None
        if done and done.returncode == 0:
            found.setdefault(done.stdout.strip(), name)
    return found


def environment(python: str, folder: Path, *requirements: str | Path) -> Path:
    """Create a virtual environment with requirements and return its folder of programs."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", *requirements, cwd=folder.parent)
    run(*pip, "check", cwd=folder.parent)
    return folder / "bin"


def empty_home(folder: Path) -> dict[str, str]:
    """Return the environment of a user who has nothing but an empty home."""
    (folder / "home").mkdir(parents=True)
    return {"HOME": str(folder / "home"), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def try_wheel(wheel: Path, version: str, python: str, folder: Path) -> str:
    """Install a wheel for one Python, compile its modules without warnings, and run the demo in an empty folder."""
    env = empty_home(folder)
    (folder / "work").mkdir()
    bin_ = environment(python, folder / "venv", wheel)
    code = "import gradwire, pathlib; print(pathlib.Path(gradwire.__file__).parent)"
    installed = run(bin_ / "python", "-c", code, cwd=folder / "work", env=env).strip()
    strict = ("-W", "error::SyntaxWarning", "-W", "error::DeprecationWarning", "-m", "compileall", "-q", "-f")
    run(bin_ / "python", *strict, installed, cwd=folder / "work", env=env)
    if (shown := run(bin_ / "gradwire", "--version", cwd=folder / "work", env=env).strip()) != f"gradwire {version}":
        raise Problem(f"gradwire --version prints {shown!r}; expected 'gradwire {version}'")
    begin = time.monotonic()
    run(bin_ / "gradwire", "demo", "--out", "demo", cwd=folder / "work", env=env)
    if not (folder / "work" / "demo" / "report.html").exists():
        raise Problem("gradwire demo wrote no demo/report.html")
    return f"demo in {time.monotonic() - begin:.0f} s"


def try_sdist(sdist: Path, python: str, folder: Path) -> str:
    """Install an unpacked source distribution and run a part of its tests, from it alone."""
    env, tree = empty_home(folder), unpack(sdist, folder)
    bin_ = environment(python, folder / "venv", tree, "pytest", "hypothesis")
    return run(bin_ / "python", "-m", "pytest", "-q", *SDIST_TESTS, cwd=tree, env=env).splitlines()[-1].strip("= ")


def _listed(problems: list[str]) -> None:
    if problems:
        raise Problem("\n".join([*problems[:10], *([f"and {len(problems) - 10} more"] if len(problems) > 10 else [])]))


class Report:
    """Runs steps, prints a line for each, and counts those that fail."""

    failures = 0

    def step(self, title: str, check: Callable[[], object]) -> None:
        begin = time.monotonic()
        try:
            note, word = check(), "ok  "
        except Problem as problem:
            note, word = str(problem).replace("\n", "\n      "), "FAIL"
            self.failures += 1
        seconds = f" ({time.monotonic() - begin:.0f} s)"
        print(f"{word}  {title}{f': {note}' if note else ''}{seconds}", flush=True)


def check_release(folder: Path, out: Path, pythons: dict[str, str]) -> int:
    """Run all steps in a temporary folder, copy the artefacts to `out` if all succeed, and return the exit status."""
    version, tracked, report = SETUP["version_of"](ROOT), tracked_files(), Report()
    print(f"Release check of gradwire {version}, Python {', '.join(pythons)}")
    artefacts: list[Path] = []

    def clean() -> None:
        if not tracked:
            raise Problem("not a git checkout: only what is committed can be released")
        changes = run("git", "status", "--porcelain", cwd=ROOT).splitlines()
        _listed([f"not committed: {line}" for line in changes])

    def built() -> str:
        artefacts.extend(build(copy_files(tracked, folder / "tree"), folder / "dist"))
        return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in artefacts)

    def same_again() -> None:
        (again,) = build(folder / "tree", folder / "again", "--wheel")
        if again.read_bytes() != artefacts[1].read_bytes():
            raise Problem("the wheel of the tree and that of the source distribution differ")

    def versions() -> None:
        texts = ((ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
        _listed(version_problems(version, *texts))

    report.step("everything is committed", clean)
    report.step("versions agree", versions)
    report.step("build", built)
    if len(artefacts) == 2:
        sdist, wheel = artefacts
        report.step("wheel is reproducible", same_again)
        report.step("source distribution is complete", lambda: _listed(sdist_problems(sdist, tracked)))
        report.step("wheel is complete", lambda: _listed(wheel_problems(wheel, tracked)))
        twine = (sys.executable, "-m", "twine", "check", "--strict", *artefacts)
        report.step("twine check --strict", lambda: run(*twine, cwd=folder) and None)
        for name, python in pythons.items():
            place = folder / f"wheel-{name}"
            report.step(f"wheel on Python {name}", lambda p=python, f=place: try_wheel(wheel, version, p, f))
        first = next(iter(pythons.values()))
        report.step("tests of the source distribution", lambda: try_sdist(sdist, first, folder / "sdist"))
    if not SETUP["REPOSITORY"]:
        print("note  GRADWIRE_REPOSITORY is not set: no project addresses, links of README.md are plain text")
    if report.failures:
        print(f"{report.failures} steps failed; nothing is written to {out}")
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for path in artefacts:
        shutil.copy2(path, out)
    print(f"all steps succeeded; {out} has what was checked")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.release_check", description="Check a release.")
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="another Python to install for")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    arguments = parser.parse_args()
    pythons = pythons_at_hand()
    for path in arguments.python:
        try:
            pythons[run(path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", cwd=ROOT).strip()] = path
        except Problem as problem:
            parser.error(f"--python {problem}")
    with tempfile.TemporaryDirectory(prefix="gradwire-release-") as folder:
        return check_release(Path(folder), arguments.out, pythons)


if __name__ == "__main__":
    sys.exit(main())
