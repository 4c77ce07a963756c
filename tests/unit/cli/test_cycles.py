"""Circles of imports: none when modules are loaded, none inside functions, and few for types."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = (
    "scenarios", "result_store", "jit", "protocols", "traces", "topology", "workload", "sim", "emu", "training", "analysis", "studies",
    "testing", "benchmarks",
)  # fmt: skip
FOR_TYPES = {
    # a model of the schema is checked by functions that name it, and a topology checks what surrounds it
    (
        "scenarios.schema.network.topology",
        "scenarios.schema.scenario",
        "scenarios.validation.common",
        "scenarios.validation.scenario",
        "scenarios.validation.switch",
        "scenarios.validation.traffic",
    ),
    # an exchange and a scheduler check the job that chooses them
    ("scenarios.schema.job.exchange", "scenarios.schema.job.job", "scenarios.schema.job.scheduler"),
    # cables and cards of a network are made by what a network is made of
    ("topology.cables", "topology.multi_nic_hosts", "topology.network"),
    # the sockets of a host hand what arrives to the transports that send by them
    ("emu.transports.datagrams", "emu.transports.endpoint"),
    # a network's answer is checked with what checks any value of a user's code, such as a network
    ("training.networks.network_interface", "training.value_checks"),
    # blocks of zeros are left out of the steps of an exchange, which it hands over
    ("workload.collectives.exchanges.nonzero_blocks", "workload.collectives.exchanges.parameter_server_steps"),
    # one kind of exchange is a function of the exchange
    ("training.exchange.exchange", "training.exchange.lossy_ring"),
    # every record leads to the header of its state, which is a record
    ("jit.records.header", "jit.records.table"),
    # an aggregation group has flows, and a flow belongs to a group
    ("testing.oracle.aggregation", "testing.oracle.flows"),
}
"""Circles that only type checkers see, each for a reason. None is to be added without one."""


def modules() -> dict[str, Path]:
    """Every module by its name below `gradwire`; those of the door have `gradwire` before them."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    for path in [*(ROOT / "gradwire").glob("*.py"), *(ROOT / "gradwire" / "cli").rglob("*.py")]:
        found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def imports(body: Iterable[ast.AST], kind: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module that happen when it is loaded; with kind "types" those for type checkers as well, and
    with "lazy" those inside functions."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and is_for_types(node.test) and kind != "types":
            yield from imports(node.orelse, kind)
        elif kind == "lazy" or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imports(ast.iter_child_nodes(node), kind)


def targets(found: ast.Import | ast.ImportFrom, name: str, package: bool, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules that an import names."""
    if isinstance(found, ast.Import):
        names = [each.name for each in found.names]
    else:
        base = (found.module or "").split(".") if found.module else []
        if found.level:
            above = name.split(".") if package else name.split(".")[:-1]
            base = above[: len(above) - found.level + 1] + base
        names = [".".join([*base, each.name]) for each in found.names] + [".".join(base)]
    for each in names:
        below = each.removeprefix("gradwire.")
        if below in known and below != name:
            yield below


def cycles(known: Mapping[str, Path], kind: str) -> set[tuple[str, ...]]:
    """The strongly connected components of more than one module."""
    graph = networkx.DiGraph()
    for name, path in known.items():
        for found in imports(ast.parse(path.read_text(encoding="utf-8")).body, kind):
            # a package that gathers what its modules have is above them, and not what they import when they
            # import one another
            for other in targets(found, name, path.name == "__init__.py", known):
                if not name.startswith(f"{other}."):
                    graph.add_edge(name, other)
    return {tuple(sorted(each)) for each in networkx.strongly_connected_components(graph) if len(each) > 1}


def test_modules_have_no_import_cycles() -> None:
    assert len(modules()) > 300
    assert cycles(modules(), "loaded") == set()


def test_imports_inside_functions_form_no_cycles() -> None:
    inside = {name: path for name, path in modules().items() if name != "gradwire"}  # it names all that it offers
    assert cycles(inside, "lazy") == set()


def test_type_checking_import_cycles_are_listed() -> None:
    # the door names all that it offers, and whoever asks it for the version would be in a circle with it
    inside = {name: path for name, path in modules().items() if name != "gradwire"}
    assert cycles(inside, "types") <= FOR_TYPES


@pytest.mark.parametrize(
    ("kind", "circles"),
    [("loaded", set()), ("types", {("sim.a", "sim.b", "sim.c")}), ("lazy", {("sim.a", "sim.b", "sim.d")})],
)
def test_cycle_search_finds_constructed_cycles(tmp_path: Path, kind: str, circles: set[tuple[str, ...]]) -> None:
    texts = {
        "sim.a": "from gradwire.sim.b import x\n",
        "sim.b": "from . import c\ndef later():\n    from gradwire.sim.d import y\n",
        "sim.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gradwire.sim import a\n",
        "sim.d": "def later():\n    import gradwire.sim.a\n",
    }
    known = {}
    for name, text in texts.items():
        known[name] = tmp_path / f"{name}.py"
        known[name].write_text(text)
    assert cycles(known, kind) == circles
