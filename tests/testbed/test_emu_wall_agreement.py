"""The simulator against real sockets on the wall clock, where this machine is quiet enough to tell.

`scenarios/library/agreement-wall.toml` has the experiments: mean and median completion within 10 %.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emu_cases import needs
from emu_commands import SHORT, Place

from gradwire.analysis.fidelity.fidelity import agreement
from gradwire.emu.testbed import Request
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.simulate import simulate
from gradwire.studies.connect import emulate


@needs("namespaces")
@pytest.mark.parametrize("policy", ["constant", "dlcp-random"])
def test_wall_clock_emulation_agrees_with_simulation(policy: str) -> None:
    chosen = load_scenario("agreement-wall").variant(policy)
    emulated = emulate(chosen, request=Request(switch="userspace", answers_late=chosen.fidelity.answers))
    if not emulated.summary["engine"]["valid"]:
        pytest.skip(f"the machine is too busy: {emulated.summary['engine']['disturbed'][0]}")
    found = agreement(simulate(chosen), emulated, chosen.fidelity)
    assert found.is_within, "\n".join(found.verdicts())
    assert found.matched == emulated.messages.num_rows > 0
    assert not check_loss_invariant(emulated)


@needs("namespaces")
def test_wall_clock_agreement_detects_a_slower_link() -> None:
    """A link of 85 % of the rate differs by more than the tolerance."""
    chosen = load_scenario("agreement-wall").variant("constant")
    slower = load_scenario("agreement-wall", set=["link.rate=42.5Mbps"]).variant("constant")
    emulated = emulate(slower, request=Request(switch="userspace"))
    if not emulated.summary["engine"]["valid"]:
        pytest.skip(f"the machine is too busy: {emulated.summary['engine']['disturbed'][0]}")
    simulated = simulate(chosen)
    emulated.summary["scenario_hash"] = simulated.summary["scenario_hash"]
    found = agreement(simulated, emulated, chosen.fidelity)
    assert [measure.what for measure in found.missed] == ["completion_mean", "completion_p50"]


@pytest.mark.beside
@needs("namespaces")
def test_late_host_answers_disturb_a_comparison(tmp_path: Path) -> None:
    """No machine answers within a ten-thousandth of a round trip."""
    place = Place(tmp_path)
    (tmp_path / "case.toml").write_text(f"{SHORT.replace('rounds = 2', 'rounds = 10')}[fidelity]\nanswers = 1e-4\n")
    command = ("fidelity", "case.toml", "--switch", "userspace", "--repeat", "1", "--json")
    for more, said in (((), True), (("--set", "fidelity.answers=off"), False)):
        code, shown, _ = place.run(*command, *more)
        disturbed = json.loads(shown)["engine"]["disturbed"]
        assert any(line.startswith("mean delay of hosts' answers") for line in disturbed) == said, disturbed
        if said:
            assert code == 1
