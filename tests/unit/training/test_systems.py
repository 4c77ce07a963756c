"""Systems in scenarios: every one trains, goes on where it was stopped, and refuses what it does not go together with."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gradwire.analysis.training.training_comparison import rows_of  # noqa: E402
from gradwire.result_store.training_result import TrainingResult  # noqa: E402
from gradwire.scenarios.errors import ScenarioError, TraceError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.scenarios.loading.registry import components  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402

SHORT = [
    "training.steps=6", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2",
    "training.score_every=2", "training.checkpoint_every=2",
]  # fmt: skip
IDEAL = 'training.network="ideal"'
CASES = {
    "asynchronous": [
        'training.system={kind="asynchronous", staleness=1, computing=["1ms","3ms"], rate="1Gbps"}',
        IDEAL,
    ],
    "slimdp": ['training.system={kind="slimdp", every=2}'],
    "mipd": ['training.system={kind="mipd", refresh=2, computing=["1ms"]}', "training.network={loss=0.1}"],
    "mp2": ['training.system={kind="mp2", period=4}', IDEAL],
    "partial_averaging": ['training.system={kind="partial_averaging", every=2, outer_momentum=0.5}', IDEAL],
    "wnn": ['training.system={kind="wnn", period=1}', 'training.reducer={kind="topk"}'],
}
ONE_BY_ONE = {
    "asynchronous, packet by packet": ['training.system={kind="asynchronous", staleness=2, computing=["1ms","5ms"]}'],
    "asynchronous, reduced": [
        'training.system={kind="asynchronous"}',
        'training.reducer={kind="dgc"}',
        "training.optimizer.momentum=0.0",
    ],
    "mipd, packet by packet": ['training.system={kind="mipd", refresh=2}'],
}
"""Over the simulator, whose switches drop of what workers push."""


def scenario(*settings: str):
    return load_scenario("train-tiny", set=[*SHORT, *settings], policy="dlcp")


def test_system_cases_cover_every_system() -> None:
    assert set(CASES) == set(components("system"))


@pytest.mark.parametrize("kind", [*CASES, *ONE_BY_ONE])
def test_every_system_resumes_after_interruption(kind: str, tmp_path: Path) -> None:
    """The run stops in the fifth step, after a checkpoint at the fourth. Its scenario is written and read again as
    well."""

    def stop(share: float, words: str) -> None:
        if "step 5" in words:
            raise KeyboardInterrupt

    asked = {**CASES, **ONE_BY_ONE}[kind]
    whole = train(scenario(*asked), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(scenario(*asked), tmp_path / "part", progress=stop)
    assert TrainingResult.read(tmp_path / "part").summary["steps_done"] == 4
    learned = train(scenario(*asked), tmp_path / "part")
    assert train(scenario(*asked)).steps == whole.steps, "without a folder"
    assert (
        learned.steps == whole.steps
        and learned.scores == whole.scores == TrainingResult.read(tmp_path / "whole").scores
    )
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"] for name in ("whole", "part"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(row["pulled_bytes"] > 0 for row in learned.steps[1::2])
    assert sum(row["pulled_bytes"] for row in learned.steps) == learned.scores[-1]["pulled_bytes"]
    assert learned.summary["server_cpu_s"] > 0 and learned.summary["encode_cpu_s"] > 0
    assert any(row.label == "sent by servers" for row in rows_of([learned]))
    assert (
        load_scenario(tmp_path / "whole" / "scenario.toml", policy="dlcp").training.system.kind
        == kind.partition(",")[0]
    )


def test_slimdp_over_simulator_loses_packets_and_takes_time() -> None:
    slim, dense = train(scenario(*CASES["slimdp"])), train(scenario())
    assert 0 < slim.steps[-1]["clock_ps"] < dense.steps[-1]["clock_ps"]
    assert any(row["lost"] for row in slim.steps)
    assert sum(row["pulled_bytes"] for row in dense.steps) == sum(row["sent_bytes"] for row in dense.steps)
    assert any(row.label == "sent by servers" for row in rows_of([dense]))


def test_mp2_over_the_simulator_takes_a_fraction_of_the_time() -> None:
    asked = ["training.steps=3", "job.push_bound=0.0", "job.tagging={}", 'transport="dctcp"']
    ours, dense = train(scenario('training.system={kind="mp2"}', *asked)), train(scenario(*asked))
    assert ours.steps[-1]["clock_ps"] < dense.steps[-1]["clock_ps"] / 2
    assert [row["pulled_bytes"] for row in ours.steps] == [row["sent_bytes"] for row in ours.steps]
    assert ours.steps[1]["sent_bytes"] < 0.15 * dense.steps[1]["sent_bytes"]


def test_steps_without_an_exchange_take_no_time() -> None:
    rows = train(scenario('training.system={kind="partial_averaging", every=3, share=1.0}')).steps
    assert [row["time_ps"] > 0 for row in rows] == [row["sent_bytes"] > 0 for row in rows] == [False, False, True] * 2


def test_system_tables_set_trainer_parameters() -> None:
    asked = scenario(*CASES["asynchronous"], 'training.reducer={kind="qsgd", levels=7}')
    trainer = trainer_of(asked, data_of(asked.training))
    assert (trainer.staleness, trainer.pace.compute_ps, trainer.pace.rate) == (1, (10**9, 3 * 10**9), 10**9)
    assert trainer.exchange.reducer.levels == 7
    asked = scenario('training.system={kind="mipd", gamma=0.25, ratio=0.2, bits=3}', IDEAL)
    rules = trainer_of(asked, data_of(asked.training)).rules
    assert (rules.gamma, rules.ratio, rules.bits) == (0.25, 0.2, 3)
    asked = scenario('training.system={kind="slimdp", alpha=0.2, beta=0.1, sets="own", keys=false}', IDEAL)
    sets = trainer_of(asked, data_of(asked.training)).selection
    assert (sets.counts[0], sets.keys) == ((43, 43), False), "of 432 elements"


@pytest.mark.parametrize(("settings", "words"), [
    (['training.system={kind="asynchronous"}', 'training.network="emulated"'], "asynchronous cannot run on real sockets"),
    (['training.system={kind="mipd"}', "training.spread=true"], "spread.*which mipd does not have"),
    (['training.system={kind="mipd"}', "training.keep_missing=true"], "keep_missing.*synchronous steps, which mipd.*expected false"),
    (['training.system={kind="asynchronous"}', 'training.reducer={kind="signsgd", vote=true, scale="none"}'], "reducer.vote.*needs all workers together"),
    (['training.system={kind="asynchronous"}', 'training.reducer={kind="qsgd", both_ways=true}'], "reducer.both_ways.*needs all workers together"),
    (['training.system={kind="asynchronous"}', 'training.reducer={kind="powersgd"}'], "powersgd has 2 synchronous rounds"),
    (['training.system={kind="asynchronous", rate="1Gbps"}'], r"system.rate.*is for links without a simulator.*1Gbps.*no such key"),
    (['training.system={kind="mipd", server_rate="1Gbps"}'], r"system.server_rate.*is for links without a simulator"),
    (['training.system={kind="asynchronous", computing=["1ms"]}', 'training.compute="trace"'], "system.computing.*conflicts with the times of a trace"),
    (['training.system={kind="mipd"}', 'training.compute="trace"'], "mipd does not send what a trace has"),
    (["training.spread=true", IDEAL], "spread.*needs the losses of a network"),
    (['training.system={kind="slimdp", alpha=0.1}'], "is more than alpha"),
    (['training.system={kind="mipd", floor=0.5, ceiling=0.2}', IDEAL], "is above the ceiling"),
    (['training.system={kind="slimdp"}', 'training.reducer={kind="topk"}'], "conflicts with slimdp"),
    (['training.system={kind="mp2"}', IDEAL, "training.error_feedback=true"], "error_feedback.*conflicts with mp2"),
    (['training.system={kind="slimdp"}', "training.momentum_correction=0.5", "training.optimizer.momentum=0.0"], "momentum_correction.*conflicts with"),
    (['training.system={kind="slimdp"}', 'training.compute="trace"'], "does not send what a trace has"),
    (['training.system={kind="hogwild"}', IDEAL], "hogwild"),
    (['training.system={kind="asynchronous", computing=[]}', IDEAL], "computing"),
])  # fmt: skip
def test_invalid_system_tables_are_rejected(settings: list[str], words: str) -> None:
    with pytest.raises(ScenarioError, match=f"(?s){words}"):
        scenario(*settings)


@pytest.mark.parametrize(("settings", "words"), [
    (['training.system={kind="asynchronous"}', IDEAL, 'training.reducer={kind="powersgd"}'], "powersgd has 2 synchronous rounds"),
    (['training.system={kind="mipd"}', IDEAL, 'job.fill="stale"'], "expected zero"),
    (['training.system={kind="mp2"}', IDEAL, 'job.exchange={kind="ring"}', "job.servers=0"], "ring is not supported by mp2"),
    (['training.system={kind="slimdp"}', IDEAL, "job.pull_bound=0.1"], "would lose what servers send back"),
    (['training.system={kind="mp2"}', 'training.network={loss=0.1, way="both"}'], "way: both would lose what servers send back"),
    (['training.system={kind="mp2", predictor="nowhere.npz"}', IDEAL], r"nowhere.npz: cannot be read"),
])  # fmt: skip
def test_untrainable_system_settings_are_rejected(settings: list[str], words: str) -> None:
    with pytest.raises((ScenarioError, TraceError), match=words):
        train(scenario(*settings))
