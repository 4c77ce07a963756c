"""What is installed: one package called gradwire, whole, beside whatever a user calls their own modules."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gradwire

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("scenarios", "traces", "components", "experiment", "sim", "emu", "training", "analysis", "testing", "benchmarks")

ALLOWED = {
    "scenarios": set(),
    "traces": {"scenarios"},
    "components": {"scenarios"},
    "experiment": {"scenarios", "traces", "components"},
    "sim": {"scenarios", "traces", "components", "experiment"},
    "emu": {"scenarios", "traces", "components", "experiment"},
    "training": {"scenarios", "traces", "experiment"},
    "analysis": {"scenarios", "traces", "components", "experiment"},
    "testing": {"scenarios", "components", "experiment", "sim"},
}
"""Which rooms the modules of a room may import."""


def tracked() -> set[str]:
    """Files of the rooms and of the package that belong in an installation, relative to the package."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = set()
    for name in listed.stdout.splitlines():
        path = Path(name)
        if path.parts[0] == "gradwire" and not (ROOT / path).is_symlink():
            path = path.relative_to("gradwire")
        elif path.parts[0] not in ROOMS:
            continue
        if path.suffix != ".md" or "bundled" in path.parts:
            files.add(str(path))
    return files


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source distribution of a copy of the tree, and the wheel that is built from nothing but it."""
    pytest.importorskip("setuptools", "69", reason="builds the package (extra: dev)")
    files = sorted(tracked())
    assert len(files) > 300
    place = tmp_path_factory.mktemp("build")
    tree = place / "tree"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if Path(name).parts[0] not in ("tests", "docs") and (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    build = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"

    def make(what: str, folder: Path) -> Path:
        words = [sys.executable, "-c", build, what, str(place)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return place / done.stdout.split()[-1]

    source = make("build_sdist", tree)
    with tarfile.open(source) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    return source, make("build_wheel", unpacked)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation of the wheel."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(target)
    return target


@pytest.mark.slow
def test_a_wheel_brings_gradwire_and_nothing_else(installed: Path) -> None:
    tops = {each.name for each in installed.iterdir()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"gradwire"}
    found = {str(each.relative_to(installed / "gradwire")) for each in (installed / "gradwire").rglob("*") if each.is_file()}
    assert (sorted(tracked() - found), sorted(found - tracked())) == ([], [])


@pytest.mark.slow
def test_it_runs_beside_a_users_own_modules(installed: Path, tmp_path: Path) -> None:
    """Modules that are called like the rooms do not get in the way, and stay importable."""
    (tmp_path / "sim.py").write_text("MINE = 1")
    for room in ("analysis", "scenarios", "traces", "emu"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("MINE = 1")
    code = (
        "import gradwire, sim, analysis, scenarios, traces, emu\n"
        f"assert gradwire.__file__.startswith({str(installed)!r}), gradwire.__file__\n"
        "assert all(each.MINE for each in (sim, analysis, scenarios, traces, emu))\n"
        "scenario = gradwire.load_scenario('demo', set=['job.iterations=2', 'job.workers=2'])\n"
        "result = gradwire.simulate(scenario)\n"
        "print(result.summary['totals']['ended_by'], len(gradwire.load_trace('resnet50').layers))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{installed}"}
    for words in (["-c", code], ["-m", "gradwire", "check", "demo"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(("done 107", "demo is valid")), done.stdout


def test_the_package_is_typed() -> None:
    assert (Path(gradwire.__file__).parent / "py.typed").exists()


def _imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it and be it for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_run_one_way(room: str) -> None:
    wrong = []
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "gradwire" and len(parts) > 1 and parts[1] not in {room, "__version__", *ALLOWED[room]}:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong
