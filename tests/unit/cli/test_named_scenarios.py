"""What does not fit the network of a scenario is told with the file, the policy and the table that it is in."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from output_cases import run

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.sim.preparation import prepare_inputs

SCENARIO = """
name = "far"
topology = { kind = "star", hosts = 3 }
transport = "dctcp"
traffic = [{ name = "t", kind = "permutation", size = "10kB" }]
fault = [{ kind = "host_paused", host = "h9", at = "1us", until = "5us" }]

[[policy]]
name = "other"
[policy.set]
seed = 2
"""


@pytest.fixture
def file(own_directory: Path) -> str:
    (own_directory / "mine.toml").write_text(SCENARIO)
    return "mine.toml"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run",), "mine.toml: the faults do not fit the network"),
        (("check",), "mine.toml, policy other: the faults do not fit the network"),
        (("run", "--policy", "other"), "mine.toml, policy other: the faults do not fit the network"),
        (("emulate", "--clock", "virtual"), "mine.toml: the testbed cannot run this scenario"),
    ],
)
def test_invalid_fault_is_reported_with_file_and_policy(file: str, command: tuple[str, ...], said: str) -> None:
    done = run(command[0], file, *command[1:])
    assert done.returncode == 2
    head, mistake = done.stderr.splitlines()[-2:]
    assert head == f"gradwire: {said}" and mistake.startswith("  fault[0].host: ")


def test_invalid_sample_ports_are_reported_with_the_file(file: str) -> None:
    rest = "".join(line for line in SCENARIO.splitlines(keepends=True) if not line.startswith("fault"))
    sampled = 'output = { sample_ports = ["h9"], queue_samples = "1us" }\n'
    Path(file).write_text(rest.replace("\n[[policy]]", f"{sampled}\n[[policy]]"))
    with pytest.raises(ScenarioError) as caught:
        prepare_inputs(load_scenario(file))
    assert str(caught.value).startswith(
        "mine.toml: the ports to be sampled are not in the network\n  output.sample_ports[0]: "
    )


def test_display_name_of_a_scenario_is_file_and_policy(file: str) -> None:
    loaded = load_scenario(file)
    assert loaded.display_name == "mine.toml" and build_scenario(loaded.as_written()).display_name == "far"
    assert (
        loaded.variant("other").display_name
        == load_scenario(file, policy="other").display_name
        == "mine.toml, policy other"
    )
    assert pickle.loads(pickle.dumps(loaded)).display_name == "mine.toml"


def test_error_keeps_its_original_location() -> None:
    told = ScenarioError("is odd", "net.gml", mistakes=[Mistake("nodes", "are none")])
    assert told.of("mine.toml") is told and ScenarioError("is odd").of("mine.toml").where == ""
