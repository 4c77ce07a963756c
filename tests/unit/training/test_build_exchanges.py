"""Exchanges of simulated jobs that trainings have not got are refused, and not taken for others."""

from __future__ import annotations

import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ('job.exchange={kind="tree"}', "job.exchange"),
        ('job.exchange={kind="fsdp"}', "job.exchange"),
        ('job.exchange={kind="parameter_server", staleness=1}', "job.exchange.staleness"),
        ('job.exchange={kind="parameter_server", asynchronous=true}', "job.exchange.asynchronous"),
        ("job.accumulate=2", "job.accumulate"),
    ],
)
def test_untrainable_exchange_is_rejected_at_its_key(change: str, where: str):
    from gradwire.training.build import data_of, table_of, trainer_of

    servers = [] if "parameter_server" in change or "accumulate" in change else ["job.servers=0"]
    bounds = ["job.push_bound=0", "job.pull_bound=0"]
    scenario = load_scenario("train-tiny", set=[*servers, *bounds, 'training.network="ideal"', change])
    with pytest.raises(ScenarioError) as caught:
        trainer_of(scenario, data_of(table_of(scenario)))
    assert caught.value.where == where
