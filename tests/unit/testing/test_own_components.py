"""What is somebody's own, through engine and oracle: both see a class's table as it has been checked, and look for it
beside the scenario."""

import sys
from pathlib import Path

import pytest

from gradwire.scenarios.loading.load import load_scenario
from gradwire.testing import Case, MessageSpec, agree, agree_on, transport
from gradwire.topology import LinkSpec, star

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
WITH_A_TIME = '''
from gradwire.scenarios.units import PositiveTime, Ps


class Waiting(ConstantRate):
    """With a key that has a unit."""

    patience: PositiveTime = Ps(5_000_000)
    """What a table that says nothing has."""

    @staticmethod
    def parameters(settings, context):
        assert settings["patience"] in (5_000_000, 7_000_000), settings
        return [settings["percent"], settings["patience"]]
'''
SCENARIO = """
name = "own"
transport = { kind = "waiting:Waiting", percent = 60 }
load_balancing = "two_choices:TwoChoices"
topology = { kind = "leaf_spine", leaves = 2, hosts_per_leaf = 2, spines = 2 }
switch = { policy = "wred:Wred", ecn_threshold = "20KiB" }
traffic = [{ name = "to-one", kind = "incast", fan_in = 3, size = "50kB" }]
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with components of one's own: one, since an engine is known by the folder, too."""
    made = tmp_path_factory.mktemp("own")
    for name in ("two_choices", "wred"):
        (made / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    (made / "waiting.py").write_text((EXAMPLES / "constant_rate.py").read_text() + WITH_A_TIME)
    (made / "own.toml").write_text(SCENARIO)
    return made


@pytest.fixture
def folder(written, monkeypatch):
    """The folder, which is not the working directory."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return written


@pytest.mark.parametrize("keys", [{}, {"patience": "7us"}, {"percent": 50}])
def test_oracle_case_uses_defaults_and_units_of_a_user_transport(folder, keys):
    table = transport("waiting:Waiting", payload="1000B", **keys)
    letters = [MessageSpec(0, host, 0, 30_000) for host in (1, 2, 3)]
    seen = agree(Case(star(4, LinkSpec(10**10, 1_000_000)), [table], letters, folder=folder))
    assert seen.sent == [30, 30, 30]


def test_scenario_loads_user_modules_from_its_folder(folder):
    assert agree_on(load_scenario(folder / "own.toml")) == 3 * 13  # packets of 4096 bytes
