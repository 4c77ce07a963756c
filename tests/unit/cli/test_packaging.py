"""What is installed: one package called gradwire, whole, beside whatever a user calls their own modules."""

from __future__ import annotations

import ast
import email
import os
import re
import runpy
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from shared import computed_once

import gradwire
from tests.release_check import build, copy_files, packaged, sdist_problems, tracked_files, unpack, wheel_problems

ROOT = Path(__file__).resolve().parents[3]
BELOW = {"scenarios", "result_store", "jit", "protocols"}
WORLD = {*BELOW, "traces", "topology", "workload"}
ALLOWED: dict[str, set[str]] = {
    "scenarios": set(),
    "result_store": {"scenarios"},
    "jit": {"scenarios", "result_store"},
    "protocols": {"scenarios", "result_store", "jit"},
    "traces": BELOW,
    "topology": BELOW,
    "workload": {*BELOW, "traces", "topology"},
    "sim": WORLD,
    "emu": WORLD,
    "training": WORLD,
    "analysis": WORLD,
    "testing": {*WORLD, "sim"},
    "studies": {*WORLD, "sim", "emu", "training", "analysis", "testing"},
}
"""Which rooms the modules of a room may import."""


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Return the files that git tracks."""
    files = tracked_files()
    if not files:
        pytest.skip("not a git checkout")
    assert len(packaged(files)) > 700
    return files


@pytest.fixture(scope="module")
def built(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the source distribution of the tracked files, and the wheel that is built from nothing but it."""
    pytest.importorskip("build", reason="builds the package (extra: dev)")

    def artefacts() -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("build")
        sdist, wheel = build(copy_files(tracked, folder / "tree"), folder / "dist", "--no-isolation")
        return sdist, wheel

    return computed_once(tmp_path_factory, "built-package", artefacts)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation of the wheel."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(target)
    return target


@pytest.fixture(scope="module")
def setup_file() -> dict[str, Any]:
    """What setup.py defines."""
    return runpy.run_path(str(ROOT / "setup.py"))


BASE = "https://example.invalid/gradwire"


@pytest.mark.parametrize("text, absolute, plain", [
    ("[a](docs/a.md#b)", f"[a]({BASE}/blob/v1.2/docs/a.md#b)", "a"),
    ("![a](docs/a.png)", f"![a]({BASE}/raw/v1.2/docs/a.png)", "*a*"),
    ("[![a](docs/a.png)](docs/a.md)", f"[![a]({BASE}/raw/v1.2/docs/a.png)]({BASE}/blob/v1.2/docs/a.md)", "*a*"),
    *((same, same, same) for same in ("[a](https://b.c)", "[a](#b)", "M[f + 1] (2)", "[a](mailto:b)")),
])  # fmt: skip
def test_readme_links_become_absolute_or_plain_text(
    setup_file: dict[str, Any], text: str, absolute: str, plain: str
) -> None:
    assert setup_file["shown"](text, BASE, "1.2") == absolute
    assert setup_file["shown"](text, "", "1.2") == plain


def test_readme_links_have_targets(setup_file: dict[str, Any]) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    relative = re.findall(r"\]\((?!https?:|#)[^)]*\)", text)
    assert len(relative) > 20
    for base in ("", BASE):
        assert re.findall(r"\]\((?!https?:|#)[^)]*\)", setup_file["shown"](text, base, "1")) == []
    targets = [each[2:-1].partition("#")[0] for each in relative]
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert setup_file["version_of"](ROOT) == gradwire.__version__


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.slow
def test_wheel_metadata_names_authors_licence_and_classifiers(built: tuple[Path, Path]) -> None:
    found = metadata_of(built[1])
    assert found["Author"] == "the gradwire authors" and found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"
    body = found.get_payload()
    assert isinstance(body, str) and "# gradwire" in body and "](docs/" not in body
    kinds = found.get_all("Classifier") or []
    assert "Topic :: System :: Networking" in kinds and "Programming Language :: Python :: 3.12" in kinds
    assert found.get_all("Project-URL") is None, "no address is made up"


@pytest.mark.slow
def test_artefacts_contain_the_tracked_files(built: tuple[Path, Path], tracked: list[str]) -> None:
    sdist, wheel = built
    assert sdist_problems(sdist, tracked) == [] and wheel_problems(wheel, tracked) == []


@pytest.mark.slow
def test_other_contents_of_artefacts_are_reported(built: tuple[Path, Path], tracked: list[str]) -> None:
    missing = ["docs/a.md", "sim/a.toml", ".containerignore2"]
    left_out = {"scenarios/units.py", "gradwire/py.typed", "README.md"}
    other = [name for name in [*tracked, *missing] if name not in left_out]
    assert set(sdist_problems(built[0], other)) == {
        *(f"lacks {name}" for name in missing),
        *(f"has the unwanted {name}" for name in left_out),
    }
    assert set(wheel_problems(built[1], other)) == {
        "lacks gradwire/sim/a.toml", "has the unwanted gradwire/scenarios/units.py",
        "has the unwanted gradwire/py.typed",
    }  # fmt: skip


@pytest.mark.slow
def test_unpacked_source_distribution_runs_its_own_tests(built: tuple[Path, Path], tmp_path: Path) -> None:
    """The links from `gradwire/` to its packages are in it, and lead into the unpacked tree."""
    tree = unpack(built[0], tmp_path)
    assert (tree / "gradwire" / "sim").is_symlink() and (tree / "gradwire" / "sim").resolve() == tree / "sim"
    (tree / "tests" / "test_place.py").write_text(
        "import gradwire.scenarios.units as units\n\n"
        f"def test_place():\n    assert units.__file__.startswith({str(tree)!r})\n"
    )
    words = ["-m", "pytest", "-q", "-p", "no:xdist", "tests/test_place.py", "tests/unit/scenarios/test_units.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_container_context_builds_the_same_wheel(built: tuple[Path, Path], tracked: list[str], tmp_path: Path) -> None:
    """The files that .containerignore leaves give the wheel of the source distribution, byte by byte."""
    lines = (ROOT / ".containerignore").read_text().splitlines()
    assert lines[1] == "*", "everything is ignored but what is named"
    names = {line[1:] for line in lines if line.startswith("!")}
    context = copy_files([name for name in tracked if name.partition("/")[0] in names], tmp_path / "context")
    assert {each.name for each in context.iterdir()} == names
    (wheel,) = build(context, tmp_path / "dist", "--wheel", "--no-isolation")
    assert wheel.read_bytes() == built[1].read_bytes()


def test_project_urls_share_one_base(setup_file: dict[str, Any]) -> None:
    assert setup_file["addresses"]("") == {}
    assert {each.partition(BASE)[0] for each in setup_file["addresses"](BASE).values()} == {""}


@pytest.mark.slow
def test_installation_works_beside_user_modules_of_the_same_names(installed: Path, tmp_path: Path) -> None:
    """User modules named like subpackages do not interfere and remain importable."""
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


def test_package_has_a_py_typed_marker() -> None:
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
def test_packages_import_only_allowed_packages(room: str) -> None:
    wrong = []
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "gradwire" and len(parts) > 1 and parts[1] not in {room, "__version__", *ALLOWED[room]}:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong
