"""Components: a new one is a new file, found by schema, checks, reference and both worlds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.scenarios.components import PLACES, components

ROOT = Path(__file__).resolve().parents[3]
TRANSPORT = '''
"""Half as fast."""

from __future__ import annotations

from typing import Literal

from gradwire.components.transports.constant_rate import ConstantRate
from gradwire.scenarios.schema.base import Count


class Halved(ConstantRate):
    """Sends at a share of the line rate that is halved some times."""

    kind: Literal["halved"]
    halvings: Count = 1
    """How many times."""

    @staticmethod
    def parameters(settings, context):
        return ConstantRate.parameters({**settings, "share": settings["share"] / 2 ** settings["halvings"]}, context)
'''
BALANCER = '''
"""Everything the first way."""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit


@njit
def choose(M, node, ways, n, A, B, count, now):
    return 0


class FirstWay(Balancer):
    """Load balancer `first_way`."""

    kind = "first_way"
    choose = staticmethod(choose)
'''
BEGINNING = """
import importlib, json, sys
for package, folder in {places}.items():
    importlib.import_module(package).__path__.append(folder)
"""
SCENARIO = """
name = "new"
load_balancing = "first_way"
topology = {{ kind = "star", hosts = 2 }}
transport = {{ kind = "halved", halvings = {halvings} }}
traffic = [{{ name = "a", kind = "permutation", size = "409600B", shift = 1 }}]
"""


@pytest.fixture
def run(tmp_path):
    """Runs Python in which the new files lie in the packages of their kind; what it prints."""
    places = {}
    for place, name, text in (("transport", "halved", TRANSPORT), ("load_balancing", "first_way", BALANCER)):
        folder = tmp_path / place
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        places[PLACES[place]] = str(folder)
    (tmp_path / "new.toml").write_text(SCENARIO.format(halvings=1))

    def python(code: str, fails: int = 0) -> str:
        program = BEGINNING.format(places=places) + code
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
        )
        assert done.returncode == fails, done.stderr
        return done.stdout if not fails else done.stderr

    return python


CLI = "sys.argv = ['gradwire', *{arguments}]; from gradwire.cli import main; main()"


def test_the_schema_and_the_reference_have_it(run):
    schema = json.loads(run(CLI.format(arguments=["schema"])))
    assert schema["$defs"]["Halved"]["properties"]["halvings"]["description"] == "How many times."
    assert "first_way" in schema["properties"]["load_balancing"]["examples"]
    assert schema["$defs"]["Halved"]["properties"]["halvings"]["default"] == 1
    text = run("from docs.reference import reference; print(reference())")
    assert '## [transport] kind = "halved"' in text
    assert "| `halvings` | whole number | `1` | How many times. |" in text
    assert '`"first_way"`' in text


def test_it_is_checked(run, tmp_path):
    file = tmp_path / "new.toml"
    assert run(CLI.format(arguments=["check", str(file)])).startswith("new is valid")
    file.write_text(SCENARIO.format(halvings=-1))
    assert "transport.halvings: is out of range" in run(CLI.format(arguments=["check", str(file)]), fails=2)


def test_both_worlds_have_it(run, tmp_path):
    said = run(
        "import gradwire\n"
        "from gradwire.emu.planning.ability import available, lacking\n"
        "from gradwire.components.find import resolve\n"
        "from gradwire.sim.fabric.parameters import Bound\n"
        f"scenario = gradwire.load_scenario({str(tmp_path / 'new.toml')!r})\n"
        "bound = Bound.to(resolve('transport', 'halved'), scenario.transport)\n"
        "print(json.dumps(['halved' in available(), lacking(scenario.transport), bound.numbers(5242880, 10, 5242880)]))\n"
    )
    runs, missing, numbers = json.loads(said)
    assert runs and missing == []
    assert numbers[0][0] == 1 << 19


def test_a_kind_is_taken_once(run):
    said = run(
        "from gradwire.scenarios.components import _in, components\n"
        "import pathlib, gradwire.components.transports as package\n"
        "folder = pathlib.Path(package.__path__[-1])\n"
        "(folder / 'twice.py').write_text((folder / 'halved.py').read_text())\n"
        "components('transport')\n",
        fails=1,
    )
    assert "both have a transport called halved" in said


@pytest.mark.parametrize("place", PLACES)
def test_components_say_what_they_are(place):
    for kind, owner in components(place).items():
        assert owner.__doc__ and kind == kind.lower()


def test_finding_them_loads_neither_numba_nor_torch():
    code = (
        "import sys; from gradwire.scenarios.components import PLACES, components; [components(each) for each in PLACES];"
        "print(*({'numba', 'torch', 'numpy', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
