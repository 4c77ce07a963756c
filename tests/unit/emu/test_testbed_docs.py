"""docs/testbed.md and emu/README.md say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradwire
from gradwire.emu.planning.backend_choice import BACKENDS
from gradwire.emu.planning.capabilities import available_transports
from gradwire.emu.planning.planner import BALANCERS, MAX_HOSTS, check_scenario
from gradwire.emu.virtual_time.kernel_build import PACKAGES
from gradwire.emu.virtual_time.kernel_patches import EXACT, QUICK
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario

ROOT = Path(gradwire.__file__).resolve().parents[1]
TESTBED = (ROOT / "docs" / "testbed.md").read_text(encoding="utf-8")
INSIDE = (ROOT / "emu" / "README.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", text))


def test_testbed_page_lists_transports_switches_balancers_and_packages():
    assert set(available_transports()) <= names(section(TESTBED, "Transports"))
    assert set(BACKENDS) <= names(section(TESTBED, "Switches"))
    assert set(BALANCERS) <= names(section(TESTBED, "What it cannot do"))
    assert f"More than {MAX_HOSTS} hosts" in TESTBED
    assert set(PACKAGES.split()) <= set(re.findall(r"[\w.-]+", section(TESTBED, "Installing")))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("switch.drr_quantum", "4KiB"), ("switch.shared_buffer", "1MiB"), ("switch.ecn_ceiling", "128KiB"),
        ("switch.trim_threshold", "16KiB"), ("switch.shortest_first", True), ("switch.pfc", True), ("output.packet_log", True),
        ("output.delays", True),
    ],
)  # fmt: skip
def test_documented_unsupported_settings_are_rejected(field: str, value: object):
    assert names(section(TESTBED, "What it cannot do")) & {field, field.split(".")[1]}
    table, key = field.split(".")
    transport = "ndp" if key == "trim_threshold" else "pfabric" if key == "shortest_first" else "dctcp"
    tables = {
        "name": "n", "topology": {"kind": "star", "hosts": 3}, "transport": transport,
        "link": {"rate": "1Gbps", "latency": "1us"},
        "switch": {"ecn_threshold": "64KiB"} if key not in ("trim_threshold", "shortest_first") else {},
        "traffic": [{"kind": "incast", "name": "t", "fan_in": 2, "size": "10kB"}],
    }  # fmt: skip
    tables.setdefault(table, {})[key] = value  # type: ignore[attr-defined]
    with pytest.raises(ScenarioError) as caught:
        check_scenario(build_scenario(tables))
    assert any(str(mistake).startswith(f"{field}:") for mistake in caught.value.mistakes)


def test_readme_explains_every_kernel_edit():
    table = section(INSIDE, "Virtual time")
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    places = sum(2 if "two lines" in row else 1 for row in rows)
    assert places == len(EXACT)
    assert {f"`{Path(each.file).name}`" for each in QUICK} <= set(re.findall(r"`[\w.-]+`", table))
    assert f"with {['one', 'two', 'three', 'four', 'five', 'six', 'seven'][len(rows) - 1]} edits" in table


def test_readme_lists_every_module_of_emu():
    table = INSIDE.split("| part |")[1].split("\n\n")[0]
    parts = {path.stem for path in (ROOT / "emu").glob("*.py")} - {"__init__"}
    parts |= {path.name for path in (ROOT / "emu").iterdir() if (path / "__init__.py").exists()}
    assert parts - {name.rstrip("/") for name in re.findall(r"`([\w/]+)`", table)} <= {"bpf", "sockets"}
