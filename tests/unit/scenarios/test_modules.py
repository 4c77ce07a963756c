"""Modules of a user's own: which files belong to one, found without running it."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from gradwire.result_store.provenance import input_digests, load_result_scenario, scenario_text
from gradwire.result_store.result import summarise
from gradwire.result_store.table_schema import FORMAT
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.loading.modules import import_root, imported_files, is_installed, user_module
from gradwire.scenarios.schema.scenario import Scenario

FILES = {
    "mine.py": "import os, gradwire\nfrom rules import one\nfrom pack.deep import two\n\ndef late():\n    import late_one\n",
    "rules.py": "import mine  # each other\nimport constants as c\n",
    "constants.py": "K = 3\n",
    "late_one.py": "",
    "pack/__init__.py": "from . import sibling\n",
    "pack/sibling.py": "from .. import above\n",
    "pack/deep/__init__.py": "from ..other import x\n",
    "pack/deep/two.py": "",
    "pack/other.py": "def broken(:\n",
    "unrelated.py": "",
    "gradwire/__init__.py": "",
    "pack/unused.py": "",
}
BELONGS = {
    "rules.py", "constants.py", "late_one.py", "pack/__init__.py", "pack/sibling.py", "pack/deep/__init__.py",
    "pack/deep/two.py", "pack/other.py",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def small(home: Path, **more: object) -> Scenario:
    tables = {
        "name": "small",
        "topology": {"kind": "star", "hosts": 4},
        "traffic": [{"name": "web", "kind": "poisson", "sizes": "20kB", "load": 0.4, "flows": 12}],
        **more,
    }
    return build_scenario(tables).at(home)


def test_imported_files_follow_all_local_imports(home: Path) -> None:
    """Imports are followed through other modules, functions and packages. Import cycles end, and a file with invalid
    syntax counts without its imports."""
    assert {str(each.relative_to(home)) for each in imported_files(home / "mine.py", home)} == BELONGS


def test_installed_module_has_no_imported_files() -> None:
    site = Path(sysconfig.get_paths()["purelib"])
    file = user_module("hypothesis", None)
    assert is_installed(site) and import_root("hypothesis", file) == site and imported_files(file, site) == []


def test_import_root_returns_folder_of_module(home: Path) -> None:
    for name in ("mine", "pack.other", "pack.deep.two"):
        assert import_root(name, user_module(name, home)) == home
    assert import_root("pack.deep", home / "pack" / "deep" / "__init__.py") == home


@pytest.mark.parametrize(
    ("place", "tables"),
    [
        ("load_balancing", {"load_balancing": "mine:X"}),
        ("transport", {"transport": "mine:X"}),
        ("switch.policy", {"switch": {"policy": "mine:X"}}),
    ],
)
def test_input_digests_cover_all_imported_user_modules(place: str, tables: dict[str, object], home: Path) -> None:
    """The class's file and its imports are among the inputs, wherever the scenario names the class. A change in one
    changes its digest, and the scenario text has the folder."""
    before = input_digests(small(home, **tables))
    assert set(before) == {place, *(f"{place}: {name}" for name in BELONGS)}
    (home / "constants.py").write_text("K = 4\n")
    after = input_digests(small(home, **tables))
    assert {name for name in before if before[name] != after[name]} == {f"{place}: constants.py"}
    assert f'modules = "{home}"' in scenario_text(small(home, **tables))


def test_error_names_changed_imported_module(home: Path, tmp_path: Path) -> None:
    scenario = small(home, load_balancing="mine:X")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scenario.toml").write_text(scenario_text(scenario))
    summary = {"format": FORMAT, **summarise(scenario, "", {}, {})}
    (tmp_path / "run" / "result.json").write_text(json.dumps(summary))
    (home / "constants.py").write_text("K = 4\n")
    with pytest.raises(ResultError, match=r"load_balancing: constants\.py has changed since"):
        load_result_scenario(tmp_path / "run", [], lambda scenario: [])
    (home / "constants.py").unlink()
    with pytest.raises(ResultError, match=r"constants\.py is missing"):
        load_result_scenario(tmp_path / "run", [], lambda scenario: [])
