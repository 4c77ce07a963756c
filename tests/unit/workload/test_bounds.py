"""Bounds of loss by layer, phase and direction, shared in a step or not: what messages carry, and what then is lost."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from sim_cases import make_trace, ps_job, ring_job, rows, scenario

from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.units import format_time
from gradwire.sim.simulate import simulate
from gradwire.testing.scenario_comparison import PacketRecorder
from gradwire.traces.trace import Trace
from gradwire.workload.loss_bounds import JobLossBounds
from gradwire.workload.resolve import resolve

LAYERS = [[3000], [3000, 10], [3000], [3000]]
DROPPABLE = {"magnitude": True, "important_fraction": 0.0}


def grown(*norms: float, layers: Any = LAYERS) -> Trace:
    """A trace whose gradients have these norms, up to one factor."""
    trace = make_trace(layers, iterations=len(norms))
    chunks = sum(tensor.chunks for tensor in trace.tensors)
    means = np.repeat(np.array(norms, dtype=np.float16)[:, None], chunks, axis=1)
    return Trace({"name": "case"}, trace.layers, trace.tensors, trace.iterations, means, means)


def bounds_of(job: dict[str, Any], trace: Trace | None = None) -> list[dict[str, Any]]:
    """The messages of a job on a network that loses nothing."""
    case = scenario(job, transport={"kind": "dlcp", "payload": "1024B"})
    return rows(simulate(case, trace or make_trace(LAYERS, iterations=2)).messages)


def of_layers(messages: list[dict[str, Any]], kind: str = "push", column: str = "bound") -> dict[Any, set[float]]:
    found: dict[Any, set[float]] = defaultdict(set)
    for row in messages:
        if row["kind"] == kind:
            found[row["layer"]].add(row[column])
    return dict(found)


# --- by layer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "wanted"),
    [
        (0.2, [0.2] * 4),
        ({"share": 0.2}, [0.2] * 4),
        ({"layers": [0.0, 0.1, 0.2, 1.0]}, [0.0, 0.1, 0.2, 1.0]),
        ({"front": 0.011, "back": 0.004}, [0.011, 0.011, 0.004, 0.004]),
        ({"front": 0.011, "back": 0.004, "front_part": 0.25}, [0.011, 0.004, 0.004, 0.004]),
        ({"front": 0.011, "back": 0.004, "front_part": 0.0}, [0.004] * 4),
        ({"front": 0.011, "back": 0.004, "front_part": 1}, [0.011] * 4),
    ],
)
def test_push_messages_carry_the_loss_bound_of_their_layer(bound, wanted):
    messages = bounds_of(ps_job(2, push_bound=bound))
    assert of_layers(messages) == {layer: {value} for layer, value in enumerate(wanted)}
    assert of_layers(messages, "pull") == {layer: {0.0} for layer in range(4)}
    assert of_layers(messages, column="share") == of_layers(messages)


def test_pull_messages_carry_the_pull_bound_of_their_layer():
    messages = bounds_of(ps_job(2, push_bound=0.1, pull_bound={"layers": [0.0, 0.0, 0.3, 0.4]}))
    assert of_layers(messages, "pull") == {0: {0.0}, 1: {0.0}, 2: {0.3}, 3: {0.4}}


def test_bucket_carries_the_lowest_bound_of_its_layers():
    """Buckets of 12,000 bytes hold layer 3; layer 2; both tensors of layer 1; layer 0."""
    job = ring_job(2, bucket="24000B", push_bound={"layers": [0.4, 0.1, 0.3, 0.2]})
    messages = bounds_of(job)
    found = defaultdict(set)
    for row in messages:
        found[row["kind"], row["part"] // 2].add(row["bound"])
    assert found["reduce_scatter", 0] == {0.2}  # layers 3 and 2
    assert found["reduce_scatter", 1] == {0.1}  # layers 1 and 0
    assert found["all_gather", 0] == found["all_gather", 1] == {0.0}  # exempt


def test_bounds_for_the_wrong_number_of_layers_are_refused():
    with pytest.raises(ScenarioError, match=r"3 bounds for the 4 layers of trace case") as caught:
        bounds_of(ps_job(2, push_bound={"layers": [0.1, 0.1, 0.1]}))
    assert "push_bound.layers" in str(caught.value) and "a list of 4" in str(caught.value)


# --- by phase ---------------------------------------------------------------------------------------------------------


def test_critical_iterations_have_a_lower_bound():
    """An iteration is critical if the gradient norm changed by at least half. The norms are 8, 8, 4 (critical), 3 (a
    quarter less), 6 (twice as large: critical), 8 (a third more). The first iteration has no predecessor, so it is
    critical."""
    rule = {"front": 0.3, "back": 0.05, "critical": 0.1}
    messages = bounds_of(ps_job(1, push_bound=rule, iterations=6), grown(8, 8, 4, 3, 6, 8))
    found = defaultdict(set)
    for row in messages:
        if row["kind"] == "push":
            found[row["iteration"]].add((row["layer"] >= 2, row["bound"]))
    low, high = {(False, 0.1), (True, 0.05)}, {(False, 0.3), (True, 0.05)}
    assert dict(found) == {0: low, 1: high, 2: low, 3: high, 4: low, 5: high}


def test_critical_iterations_follow_change_threshold_and_replayed_gradients():
    """With a threshold of 0.2, the change from 4 to 3 is critical as well. The second worker replays one iteration
    ahead of the first (8, 4, 3, 8 and then 8 again). Pulls follow the first worker's gradients."""
    rule = {"share": 0.3, "critical": 0.0, "change": 0.2}
    messages = bounds_of(ps_job(2, push_bound=rule, pull_bound=rule, iterations=4), grown(8, 8, 4, 3))
    pushed, pulled = defaultdict(dict), defaultdict(dict)
    for row in messages:
        which = pushed if row["kind"] == "push" else pulled
        worker = row["src"] if row["kind"] == "push" else row["dst"]
        which[worker][row["iteration"]] = row["bound"]
    assert pushed["h0"] == {0: 0.0, 1: 0.3, 2: 0.0, 3: 0.0}
    assert pushed["h1"] == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}  # 8, 4, 3, 8
    assert pulled["h0"] == pulled["h1"] == pushed["h0"]


def test_gradient_norm_is_euclidean_if_rms_values_are_recorded():
    """Half of the runs have twice the mean, and all have an RMS of three; the norm follows the RMS."""
    trace = make_trace([[512]], iterations=2)
    means = np.array([[1, 1], [1, 2]], dtype=np.float16)
    rms = np.array([[1, 1], [3, 3]], dtype=np.float16)
    for known, wanted in ((None, 256 * 3.0), (rms, (512 * 9) ** 0.5)):
        found = Trace({"name": "n"}, trace.layers, trace.tensors, trace.iterations, means, means, known)
        job = scenario(ps_job(1, push_bound=0.1), transport="dlcp").job[0]
        assert JobLossBounds(job, found, lambda worker, iteration: iteration, 0, "job")._norm(1) == pytest.approx(
            wanted
        )


# --- for a step -------------------------------------------------------------------------------------------------------


def lossy(job: dict[str, Any], seed: int = 1, **more: Any) -> Any:
    """A star whose cables lose 2 % of the packets; everything is droppable, and the bound is spent on what is lost."""
    case = scenario(
        job, transport={"kind": "dlcp", "payload": "1024B", "stop_policy": "on_probe", **more}, link={"loss": 0.02},
        seed=seed, output={"missing": True},
    )  # fmt: skip
    return case, simulate(case, make_trace([[20_000], [20_000, 20_000], [20_000]], iterations=2))


def spent(result: Any, kinds: tuple[str, ...] = ("push", "reduce_scatter")) -> dict[Any, list[int]]:
    """Bytes lost and allowed of each worker in each step."""
    found: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows(result.messages):
        if row["kind"] in kinds:
            total = found[row["src"], row["iteration"]]
            total[0] += row["lost_bytes"]
            total[1] += allowed_loss(row["bytes"], row["share"])
    return dict(found)


@pytest.mark.parametrize("exchange", ["servers", "ring"])
def test_messages_of_a_step_share_the_loss_budget_with_bound_per_step(exchange):
    """A single message is too small to lose a packet within its bound, but two together may lose one. Messages have
    ten packets and a bound of 5 % (in the ring: 27 packets and 3 %)."""
    shape: Any = {"tagging": DROPPABLE, "push_bound": 0.05 if exchange == "servers" else 0.03, "iterations": 2}
    if exchange == "servers":
        job = ps_job(3, 2, exchange={"partition": "10240B"}, **shape)
    else:
        job = ring_job(3, bucket="30720B", **shape)
    _, alone = lossy(job)
    _, together = lossy({**job, "bound_per": "step", "bound_most": 1.0})
    again = [sum(row["retransmitted"] for row in rows(result.messages)) for result in (alone, together)]
    lost = [sum(total for total, _ in spent(result).values()) for result in (alone, together)]
    assert lost[0] < 1024 < lost[1]  # but a last packet of less than a whole one
    assert again[1] < again[0]
    for result in (alone, together):
        assert check_loss_invariant(result) == []
        assert all(total <= allowed for total, allowed in spent(result).values())
    assert {row["bound"] for row in rows(together.messages) if row["share"] > 0} == {1.0}
    assert all(row["lost_bytes"] == 0 for row in rows(together.messages) if row["share"] == 0)


def test_message_loss_stays_below_bound_most_and_exempt_layers_lose_nothing():
    job = ps_job(
        3, 2, exchange={"partition": "10240B"}, tagging=DROPPABLE, bound_per="step", bound_most=0.15, iterations=2,
        push_bound={"layers": [0.05, 0.0, 0.2]},
    )  # fmt: skip
    _, result = lossy(job)
    assert of_layers(rows(result.messages)) == {0: {0.15}, 1: {0.0}, 2: {0.2}}  # at least its own bound
    assert of_layers(rows(result.messages), column="share") == {0: {0.05}, 1: {0.0}, 2: {0.2}}
    assert check_loss_invariant(result) == []
    assert all(row["lost_bytes"] == 0 for row in rows(result.messages) if row["layer"] == 1)


@pytest.mark.parametrize("stop_policy", ["early", "eager", "on_probe"])
@pytest.mark.parametrize("seed", range(3))
def test_engine_matches_oracle_with_bound_per_step(seed, stop_policy):
    job = ps_job(3, 2, exchange={"partition": "10240B"}, tagging={"magnitude": True, "important_fraction": 0.3},
                 push_bound={"front": 0.05, "back": 0.12}, bound_per="step", iterations=2)  # fmt: skip
    case = scenario(
        job, transport={"kind": "dlcp", "payload": "1024B", "stop_policy": stop_policy}, link={"loss": 0.02}, seed=seed
    )  # fmt: skip
    played = PacketRecorder()
    result = simulate(case, make_trace([[20_000], [20_000]], iterations=2), fabric=played)
    assert played.difference() == ""
    assert check_loss_invariant(result) == []


def test_invariant_check_reports_loss_above_the_step_budget():
    """Two messages of a step together lose more than the step's budget, each less than its own bound."""
    _, result = lossy(
        ps_job(
            3, 1, exchange={"partition": "10240B"}, tagging=DROPPABLE, push_bound=0.05, bound_per="step", bound_most=1.0
        )
    )
    table = result.messages.to_pydict()
    mine = [i for i in range(len(table["kind"])) if table["kind"][i] == "push" and table["src"][i] == "h0"]
    allowed = sum(allowed_loss(table["bytes"][i], 0.05) for i in mine)
    for i in mine:
        table["lost_bytes"][i], table["received_bytes"][i] = 0, table["bytes"][i]
    first, second = mine[:2]
    for i, lost in ((first, 6000), (second, allowed - 6000)):
        table["lost_bytes"][i], table["received_bytes"][i] = lost, table["bytes"][i] - lost
    last = max(table["end_ps"]) + 1
    for i in mine:
        table["end_ps"][i] = last  # all at one time: then they are asked together
    assert broken_by(result, table) == []
    table["lost_bytes"][second] += 1
    table["received_bytes"][second] -= 1
    (found,) = broken_by(result, table)
    assert str(found) == (
        f"push messages of job job0, iteration 0, from h0 to h3: {allowed + 1} bytes lost by {format_time(last)}, "
        f"{allowed} allowed for those delivered by then"
    )


def test_invariant_check_reports_loss_ahead_of_the_delivered_budget():
    """The losses fit the budget of the whole step, but not that of the messages delivered so far."""
    _, result = lossy(
        ps_job(
            3, 1, exchange={"partition": "10240B"}, tagging=DROPPABLE, push_bound=0.05, bound_per="step", bound_most=1.0
        )
    )
    table = result.messages.to_pydict()
    mine = [i for i in range(len(table["kind"])) if table["kind"][i] == "push" and table["src"][i] == "h0"]
    for place, i in enumerate(mine):
        table["lost_bytes"][i], table["received_bytes"][i] = 0, table["bytes"][i]
        table["end_ps"][i] = 10**9 + place
    parts = [allowed_loss(table["bytes"][i], 0.05) for i in mine]
    lost = sum(parts[:3]) + 1
    assert table["bytes"][mine[2]] > lost <= sum(parts)
    table["lost_bytes"][mine[2]], table["received_bytes"][mine[2]] = lost, table["bytes"][mine[2]] - lost
    (found,) = broken_by(result, table)
    assert (found.end_ps, found.lost_bytes, found.allowed_bytes) == (10**9 + 2, lost, lost - 1)
    table["lost_bytes"][mine[2]] -= 1
    table["received_bytes"][mine[2]] += 1
    assert broken_by(result, table) == []


def broken_by(result, table):
    """What is wrong with a Result that has these messages, and nothing that could contradict them."""
    summary = result.summary | {"totals": {}}
    return check_loss_invariant(type(result).build(summary, {"messages": table}))


def test_invariant_check_reports_differing_loss_counts_of_tables():
    """Lost bytes differ between the messages table, the missing table and the totals."""
    _, result = lossy(ps_job(3, 1, exchange={"partition": "10240B"}, tagging=DROPPABLE, push_bound=0.3))
    messages, missing = result.messages.to_pydict(), result.missing.to_pydict()
    assert sum(messages["lost_bytes"]) == sum(missing["bytes"]) == result.summary["totals"]["lost_bytes"] > 0

    def found(summary=result.summary, messages=messages, missing=missing):
        return check_loss_invariant(type(result).build(summary, {"messages": messages, "missing": missing}))

    assert found() == []
    total = sum(messages["lost_bytes"])
    (said,) = found(summary=result.summary | {"totals": {"lost_bytes": total - 1}})
    assert str(said) == f"the table of messages has {total} bytes lost, the summary {total - 1}"
    less = {name: column[1:] for name, column in missing.items()}
    (said,) = found(missing=less)
    number, size = missing["message"][0], missing["bytes"][0]
    whole = messages["lost_bytes"][messages["message"].index(number)]
    assert str(said) == (
        f"message {number} of the table of messages has {whole} bytes lost, that of missing packets {whole - size}"
    )


# --- what rotates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [ps_job(3, 2), ring_job(3, bucket="4kB")], ids=["servers", "ring"])
def test_message_turn_increases_per_iteration_from_a_seeded_start(job):
    """Messages with the same content between the same two hosts form one sequence of turns."""

    def turns(seed: int) -> dict[Any, list[int]]:
        case = scenario({**job, "iterations": 3}, transport="dlcp", seed=seed)
        found: dict[Any, list[int]] = defaultdict(list)
        m = resolve(case, make_trace(LAYERS)).program.messages
        columns = (m.iteration, m.src, m.dst, m.tensor, m.part, m.kind, m.turn)
        for _, *key, turn in sorted(zip(*(column.tolist() for column in columns), strict=True)):
            found[tuple(key)].append(turn)
        return found

    found = turns(1)
    assert all(each == [each[0], each[0] + 1, each[0] + 2] for each in found.values())
    begins = {each[0] for each in found.values()}
    assert len(begins) > 0.95 * len(found) and max(begins) > 40_000
    assert turns(1) == found != turns(2)
