"""Overlapped averaging: what it sends and when, worked out by hand, and a step of SGD on real arrays along its program."""

from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest
from array_cases import of
from dense_cases import shaped_trace
from sim_cases import US, make_trace, scenario

from gradwire.analysis.breakdown.breakdown import PARTS, breakdown
from gradwire.analysis.timeline.tensors import tensors as tensor_table
from gradwire.analysis.training.lost_values import lost_values
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from gradwire.workload.collectives.exchanges.overlapped_steps import groups_of, operations_of
from gradwire.workload.prerequisites import find_prerequisites, make_jobs
from gradwire.workload.program import FIRE, WAIT
from gradwire.workload.program_export import export_program

NET = [[(4, 3, 3, 3)], [(4,), (4,)], [(5, 36)], [(5,)], [(2, 5), (2,)]]
"""A kernel, a batch norm, a weight matrix, a vector by itself behind it, a weight matrix with its bias."""
TRACE = shaped_trace(NET, iterations=2)


def case(workers=3, *, trace=TRACE, batch=2, iterations=2, dense="activations", network=MappingProxyType({}), **fields):
    """A scenario with the exchange, and what its job is."""
    exchange = {"kind": "overlapped", "batch": batch, "dense": dense}
    made = scenario({"workers": workers, "iterations": iterations, "exchange": exchange, **fields}, **network)
    (job,) = make_jobs(made, find_prerequisites(made, trace))
    return made, job


def test_layers_are_grouped_by_kind_for_the_overlapped_exchange():
    groups = groups_of(TRACE.tensors, activations=True)
    assert [each.layers for each in groups] == [(0, 1), (2,), (3,), (4,)]
    assert [each.matrix for each in groups] == [None, (5, 36), None, (2, 5)]
    assert [each.elements for each in groups] == [4 * 27 + 8, 180, 5, 12]
    assert [each.layers for each in groups_of(TRACE.tensors, activations=False)] == [(0, 1), (2, 3), (4,)]
    assert [each.layers for each in groups_of(make_trace([[5], [6]]).tensors, activations=True)] == [(0, 1)]


def test_overlapped_operations_have_the_expected_order_and_bytes():
    groups = groups_of(TRACE.tensors, activations=True)
    made = operations_of(groups, list(range(len(TRACE.tensors)))[::-1], workers=4, batch=10)
    assert [(each.kind, each.group) for each in made] == [
        ("activations", 1), ("activations", 3),
        ("errors", 3), ("reduce_scatter", 2), ("errors", 1), ("reduce_scatter", 0),
        ("parameters", 0), ("parameters", 1), ("parameters", 2), ("parameters", 3),
    ]  # fmt: skip
    sizes = [each.nbytes // 4 for each in made]
    assert sizes == [10 * 9, 10 * 2, 10 * 2, 2, 10 * 5, 29, 29, 9 * 5, 2, 2 * 2]
    _, job = case(4, batch=10)
    assert job.exchange.bytes_per_iteration == 12 * 4 * sum(sizes)
    assert job.exchange.bytes_per_iteration * 2 == export_program([job.part]).messages.nbytes.sum()


def test_activation_exchange_sends_half_of_an_all_reduce_for_a_large_matrix():
    """With n_in n_out = 2^20, activations and errors (B (n_in / N + n_out)) are a thousandth of the matrix.
    Parameters dominate the bytes, and an all-reduce sends twice as many."""
    trace = shaped_trace([[(1024, 1024)]])
    _, job = case(8, trace=trace, batch=1, iterations=1)
    all_reduce = 2 * 7 * 4 * 2**20
    assert 0.5 < job.exchange.bytes_per_iteration / all_reduce < 0.51
    _, job = case(8, trace=trace, dense="gradients", iterations=1)
    assert job.exchange.bytes_per_iteration == all_reduce


# --- real arrays ------------------------------------------------------------------------------------------------------


class Sgd:
    """Steps of all workers along the program, with integers, so that sums are exact in any order: kernels whose
    gradients are given, and weight matrices with activations A and errors E, whose gradient is A^T E (columns of the
    matrix as rows) and whose bias has the sum of E.

    values : by worker and group, its own copy, filled up; `bias` the same of fully connected layers.
    came : (kind, iteration, group, source, destination) -> what has arrived of that.
    """

    def __init__(self, job, rng, batch):
        self.job, self.rng, self.program = job, rng, export_program([job.part])
        context = job.exchange.context
        self.workers, self.groups = len(context.workers), job.exchange.groups
        self.number = {int(node): worker for worker, node in enumerate(context.nodes)}
        self.plans = [[self.drawn(group, batch) for group in self.groups] for _ in range(job.table.iterations)]
        self.start = [rng.integers(-99, 99, self.workers * group.part(self.workers)) for group in self.groups]
        self.values = [[each.copy() for each in self.start] for _ in range(self.workers)]
        self.bias = [
            [np.zeros(group.matrix[0] if group.matrix else 0, dtype=np.int64) for group in self.groups]
            for _ in range(self.workers)
        ]
        self.came = {}

    def drawn(self, group, batch):
        """Of one iteration, per worker: gradients, filled up, or activations (filled up) and errors."""
        size = self.workers * group.part(self.workers)
        if group.matrix is None:
            found = np.zeros((self.workers, size), dtype=np.int64)
            found[:, : group.elements] = self.rng.integers(-9, 9, (self.workers, group.elements))
            return found
        out, into = group.matrix
        inputs = np.zeros((self.workers, batch, self.workers * group.columns(self.workers)), dtype=np.int64)
        inputs[:, :, :into] = self.rng.integers(-9, 9, (self.workers, batch, into))
        return inputs, self.rng.integers(-9, 9, (self.workers, batch, out))

    def expected(self):
        """Parameters and biases by plain SGD with rate 1: all workers' own gradients, subtracted."""
        values, biases = [each.copy() for each in self.start], [np.zeros_like(each) for each in self.bias[0]]
        for plan in self.plans:
            for value, bias, mine in zip(values, biases, plan, strict=True):
                if isinstance(mine, tuple):
                    for inputs, errors in zip(*mine, strict=True):
                        value -= (inputs.T @ errors).ravel()
                        bias -= errors.sum(axis=0)
                else:
                    value -= mine.sum(axis=0)
        return values, biases

    def sent(self, message):
        """What a message takes along, when it leaves."""
        kind, iteration, group, src, dst = self.what(message)
        part = self.groups[group].part(self.workers)
        if kind == "parameters":
            return self.values[src][group][src * part : (src + 1) * part].copy()
        plan = self.plans[iteration][group]
        if kind == "reduce_scatter":
            return plan[src][dst * part : (dst + 1) * part]
        inputs, errors = plan
        columns = self.groups[group].columns(self.workers)
        return errors[src] if kind == "errors" else inputs[src][:, dst * columns : (dst + 1) * columns]

    def what(self, message):
        rows = self.program.messages
        group = int(rows.part[message]) // self.workers
        ends = self.number[int(rows.src[message])], self.number[int(rows.dst[message])]
        return (KINDS[rows.kind[message]], int(rows.iteration[message]), group, *ends)

    def update(self, iteration, group, worker):
        """A worker updates what it owns by what has arrived; KeyError if something of it has not."""
        plan, part = self.plans[iteration][group], self.groups[group].part(self.workers)
        own = slice(worker * part, (worker + 1) * part)
        others = [other for other in range(self.workers) if other != worker]
        if self.groups[group].matrix is None:
            gradient = plan[worker][own] + sum(
                self.came["reduce_scatter", iteration, group, other, worker] for other in others
            )
        else:
            columns = self.groups[group].columns(self.workers)
            inputs = [plan[0][worker][:, worker * columns : (worker + 1) * columns]]
            inputs += [self.came["activations", iteration, group, other, worker] for other in others]
            errors = [plan[1][worker]] + [self.came["errors", iteration, group, other, worker] for other in others]
            gradient = (np.concatenate(inputs).T @ np.concatenate(errors)).ravel()
            self.bias[worker][group] -= np.concatenate(errors).sum(axis=0)
        self.values[worker][group][own] -= gradient

    def arrives(self, message, content):
        kind, _, group, src, dst = what = self.what(message)
        assert content.nbytes // 2 == self.program.messages.nbytes[message]  # int64 for float32
        self.came[what] = content
        if kind == "parameters":
            part = self.groups[group].part(self.workers)
            self.values[dst][group][src * part : (src + 1) * part] = content

    def run(self):
        """Everything, in an order drawn from those that are possible; a worker updates when it says that it does."""
        program, rng = self.program, self.rng
        left, fired, flying = program.needs.copy(), set(), []
        places = [0] * len(program.processes)
        asked = self.updates()

        def count(event):
            left[event] -= 1
            assert left[event] >= 0
            if left[event]:
                return
            fired.add(event)
            for message in of(program.posts, event):
                flying.append((message, np.array(self.sent(message))))
            for other in of(program.after, event):
                count(other)

        def may(process):
            steps = program.processes[process].steps
            return places[process] < len(steps) and (
                steps[places[process]].operation != WAIT or steps[places[process]].value in fired
            )

        while choices := [n for n in range(len(places)) if may(n)] + [-1 - n for n in range(len(flying))]:
            choice = int(choices[rng.integers(len(choices))])
            if choice < 0:
                message, content = flying.pop(-1 - choice)
                self.arrives(message, content)
                count(message)
                continue
            step = program.processes[choice].steps[places[choice]]
            places[choice] += 1
            if step.operation == FIRE:
                if step.value in asked:
                    self.update(*asked[step.value])
                count(step.value)
        assert all(place == len(each.steps) for place, each in zip(places, program.processes, strict=True))
        return self

    def updates(self):
        """The events that ask for all-gathers of parameters, as (iteration, group, worker): right before a worker asks
        for one it has updated its part."""
        rows, found = self.program.messages, {}
        for process in self.program.processes:
            if process.worker >= 0:
                continue
            steps = process.steps
            for wait, fire in pairwise(steps):
                if wait.operation == WAIT and fire.operation == FIRE:
                    message = of(self.program.posts, fire.value)[0]
                    kind, iteration, group, src, _ = self.what(message)
                    if kind == "parameters":
                        found[wait.value] = iteration, group, src
        assert len(found) * (self.workers - 1) == (rows.kind == KINDS.index("parameters")).sum()
        return found


MATRICES = shaped_trace([[(5, 7), (5,)], [(3, 5)]], iterations=2)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("dense", ["activations", "gradients"])
@pytest.mark.parametrize("trace", [TRACE, MATRICES], ids=["kernels", "matrices"])
def test_overlapped_step_equals_plain_sgd_in_any_event_order(workers, dense, trace):
    _, job = case(workers, batch=3, dense=dense, iterations=3, trace=trace)
    for seed in range(3):
        made = Sgd(job, np.random.default_rng(seed), 3).run()
        values, biases = made.expected()
        for worker in range(workers):
            for group in range(len(made.groups)):
                assert (made.values[worker][group] == values[group]).all()
                assert (made.bias[worker][group] == biases[group]).all()


# --- times ------------------------------------------------------------------------------------------------------------

PAYLOAD, HEADERS, BYTE = 1000, 58, 80  # picoseconds a byte at 100 Gbps
PACKET = (PAYLOAD + HEADERS) * BYTE
A = 4 * US + PACKET
"""Of a message: software latency, two cables, and the last packet once more, from the switch."""
STAR = {
    "switch": {"queues": 1, "buffer": "100MB"},
    "transport": {"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
}


def kernel(workers, packets):
    """A layer of which every worker owns so many packets."""
    return [(workers, packets * PAYLOAD // 4, 1, 1)]


@pytest.mark.parametrize("workers", [2, 5])
def test_one_layer_iteration_takes_two_operations_and_an_nth_of_the_update(workers):
    trace = shaped_trace([kernel(workers, 20)], forward=US, backward=US, optimizer=7 * US)
    made, _ = case(workers, trace=trace, iterations=1, network=STAR)
    result = simulate(made, trace)
    operation = A + 20 * (workers - 1) * PACKET
    assert set(result.iterations["end_ps"].to_pylist()) == {2 * US + 2 * operation + 7 * US // workers}


def test_parameter_gathers_overlap_with_the_next_forward_pass_in_layer_order():
    """The first layer waits for its own gather, and the second layer waits for nothing. The operations of two layers
    take T = A + 40 packets each, and forward takes 2 T a layer."""
    long = A + 40 * PACKET
    trace = shaped_trace([kernel(3, 20), kernel(3, 20)], iterations=2, forward=2 * long, backward=2 * long)
    made, _ = case(trace=trace, network=STAR)
    first, second = (row for row in simulate(made, trace).iterations.to_pylist() if row["worker"] == 0)
    ready = 8 * long  # four passes of a layer; layer 1's all-to-all is over by then
    assert first["backward_end_ps"] == ready and first["end_ps"] == ready + 2 * long == second["start_ps"]
    assert second["forward_end_ps"] == second["start_ps"] + 4 * long
    held = made.model_copy(update={"job": (made.job[0].model_copy(update={"scheduler": _barrier()}),)})
    first, _ = (row for row in simulate(held, trace).iterations.to_pylist() if row["worker"] == 0)
    assert first["end_ps"] == ready + 4 * long  # two all-to-alls and two gathers, nothing behind anything


def _barrier():
    return scenario({"workers": 2, "exchange": {"kind": "ring"}, "scheduler": "barrier"}).job[0].scheduler


def test_worker_runs_one_communication_operation_at_a_time():
    """A worker starts to send an operation only after all messages of the previous operation have arrived."""
    made, job = case(4, iterations=2, compute_scale=0.0, network=STAR)
    rows = simulate(made, TRACE).messages.to_pylist()
    order = [(each.kind, each.group) for each in job.exchange.operations]
    for worker in range(4):
        before = 0
        for iteration in range(2):
            for kind, group in order:
                mine = [
                    row for row in rows if (row["kind"], row["part"] // 4, row["iteration"]) == (kind, group, iteration)
                ]
                assert len(mine) == 12
                assert min(row["start_ps"] for row in mine if row["src"] == f"h{worker}") >= before
                before = max(row["end_ps"] for row in mine if row["dst"] == f"h{worker}")
                assert before > 0


def test_blocking_buckets_are_exchanged_serially():
    """Two buckets that are ready at once take twice the time of one, unless they run concurrently."""
    trace = make_trace([[3 * 5000], [3 * 5000]], forward=US, backward=0)
    ends = []
    for blocking in (False, True):
        exchange = {"kind": "transpose", "bucket": "1B", "blocking": blocking}
        made = scenario({"workers": 3, "exchange": exchange}, **STAR)
        ends.append(max(simulate(made, trace).iterations["end_ps"].to_pylist()) - 2 * US)
    assert ends[1] == 4 * (A + 40 * PACKET)
    assert ends[0] <= 2 * A + 2 * 80 * PACKET


# --- what a Result tells ----------------------------------------------------------------------------------------------


def test_breakdown_of_overlapped_exchange_sums_to_iteration_times():
    made, _ = case(3, iterations=3, jitter=0.3)
    result = simulate(made, TRACE)
    found = breakdown(result, TRACE).rows
    assert len(found) == 9 and {row["worker"] for row in found} == {0, 1, 2}
    assert all(sum(row[f"{part}_ps"] for part in PARTS) == row["end_ps"] - row["start_ps"] for row in found)
    assert any(row["straggler_ps"] for row in found)
    table = tensor_table(result, TRACE)
    assert set(table["worker"].to_pylist()) == {0, 1, 2} and table.num_rows == 9 * len(TRACE.tensors)
    assert lost_values(made, result, TRACE) == []


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workers": 1}, "is too small for overlapped"),
        ({"scheduler": "p3"}, "its own order"),
        ({"push_bound": 0.1}, "allows loss"),
        ({"tagging": {"magnitude": True}}, "tags by magnitude"),
        ({"servers": 2}, "is not used by overlapped"),
    ],
)
def test_overlapped_exchange_refuses_incompatible_settings(fields, words):
    job = {"name": "job", "trace": "case", "workers": 3, "exchange": {"kind": "overlapped", "batch": 2}, **fields}
    tables = {"name": "case", "topology": {"kind": "star", "hosts": 8}, "transport": "dctcp", "job": [job]}
    with pytest.raises(ScenarioError, match=words):
        build_scenario(tables, "case")


def test_blocking_exchange_refuses_a_front_layer_first_scheduler():
    job = {
        "name": "job",
        "trace": "case",
        "workers": 3,
        "exchange": {"kind": "ring", "blocking": True},
        "scheduler": "p3",
    }
    tables = {"name": "case", "topology": {"kind": "star", "hosts": 8}, "transport": "dctcp", "job": [job]}
    with pytest.raises(ScenarioError, match="sends front layers first"):
        build_scenario(tables, "case")


def test_overlapped_exchange_refuses_oversized_messages():
    with pytest.raises(ScenarioError, match="packets"):
        case(batch=2**31 - 1)
