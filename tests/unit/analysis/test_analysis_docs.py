"""The documentation says what is there: every key of a scenario, every column of the tables, examples that load."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from analysis_cases import small_result

import gradwire
from gradwire.analysis.comparison.compare import compare, flat_row
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.loading.load import build_scenario, list_library, load_scenario

ROOT = Path(gradwire.__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def load_reference() -> Any:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("page", "made"), [("scenario.md", "reference"), ("sweeps.md", "sweep_reference")])
def test_generated_reference_pages_are_up_to_date(page: str, made: str):
    reference = load_reference()
    written = (DOCS / page).read_text(encoding="utf-8").split(reference.MARKER)[1]
    assert reference.MARKER + written == getattr(reference, made)(), "run: python docs/reference.py"


def test_reference_explains_every_scenario_and_sweep_key():
    reference = load_reference()
    for _, model in (*reference.SECTIONS, *reference.SWEEP_SECTIONS):
        for name in model.model_fields:
            if name != "kind":
                assert reference.meaning(model, name), (model, name)


def test_reference_explains_only_existing_keys():
    reference = load_reference()
    known = {
        (model.__name__, name)
        for _, model in (*reference.SECTIONS, *reference.SWEEP_SECTIONS)
        for name in model.model_fields
    }
    assert {*reference.MORE, *reference.VALUES} <= known


@pytest.mark.parametrize("table", TABLES)
def test_results_page_describes_every_table_column(table: str):
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    section = text.split(f"### {table}\n")[1].split("\n#")[0]
    described = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, flags=re.MULTILINE)
    assert dict(described) == dict(TABLES[table])


def test_results_page_describes_every_comparison_column():
    text = (DOCS / "results.md").read_text(encoding="utf-8").split("### Columns of comparison.csv")[1]
    described = set(re.findall(r"`(\w+)`", text))
    columns = flat_row(compare([small_result()]).flat[0], "x")
    missing = {name.replace("pull_", "push_").replace("push_", "all_") for name in columns} - described
    assert not missing


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "scenario.md", DOCS / "telemetry.md", DOCS / "fidelity.md", DOCS / "testbed.md"]
)
def test_scenarios_in_the_documentation_are_valid(page: Path):
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        assert build_scenario(tomllib.loads(block)).variants()


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "sim" / "README.md",
    ROOT / "emu" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_relative_links_of_pages_exist(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")) and target != "benchmarks/README.md":
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", list_library())
def test_library_scenarios_can_be_loaded(name: str):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.variants()


def test_documentation_images_are_below_200_kb():
    pictures = sorted((DOCS / "images").glob("*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 200_000, picture
