"""Messages without blocks of zeros: bytes by hand, and the exchanges that cannot leave them out."""

from __future__ import annotations

import numpy as np
import pytest
from sim_cases import Ideal, make_trace, ps_job, rows, scenario

from gradwire.emu.testbed import check_scenario
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from gradwire.traces.trace import Trace

POSITION, BLOCK = 4, 4 * 256


def trace_of(filled: list[list[int]], elements: int = 1000) -> Trace:
    """Return a trace of one tensor in four blocks; in iteration i only the blocks `filled[i]` are not zero."""
    whole = make_trace([[elements]], iterations=len(filled))
    largest = np.zeros((len(filled), -(-elements // 256)), dtype=np.float16)
    for row, blocks in zip(largest, filled, strict=True):
        row[blocks] = 1
    return Trace(whole.manifest, whole.layers, whole.tensors, whole.iterations, largest, largest)


def bytes_of(filled: list[list[int]], partition: str = "4MiB") -> dict[tuple[str, str, int], int]:
    """Return the bytes of the messages of an iteration of two workers, the second one iteration ahead."""
    job = ps_job(2, exchange={"skip_zeros": True, "partition": partition})
    result = simulate(scenario(job), trace_of(filled), fabric=Ideal())
    return {
        (row["kind"], row["src"] if row["kind"] == "push" else row["dst"], row["part"]): row["bytes"]
        for row in rows(result.messages)
    }


def test_workers_push_own_blocks_and_pull_those_of_any_worker() -> None:
    """The fourth block has 232 elements; the first worker's gradients are zero in all blocks."""
    sizes = bytes_of([[], [1, 3]])
    assert sizes["push", "h0", 0] == POSITION
    assert sizes["push", "h1", 0] == BLOCK + 4 * 232 + 2 * POSITION
    assert sizes["pull", "h0", 0] == sizes["pull", "h1", 0] == sizes["push", "h1", 0]
    sizes = bytes_of([[0, 1], [1, 2]])
    assert sizes["push", "h0", 0] == sizes["push", "h1", 0] == 2 * (BLOCK + POSITION)
    assert sizes["pull", "h0", 0] == 3 * (BLOCK + POSITION)


def test_partition_that_cuts_a_block_sends_its_part_of_it() -> None:
    """A partition of 1200 bytes has 300 elements: the first block, and 44 elements of the second."""
    sizes = bytes_of([[1], [1]], partition="1200B")
    assert [sizes["push", "h0", part] for part in range(4)] == [4 * 44 + 4, 4 * 212 + 4, POSITION, POSITION]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"exchange": {"skip_zeros": True, "asynchronous": True}}, "either this or exchange.asynchronous"),
        ({"exchange": {"skip_zeros": True, "aggregation": True}}, "either this or exchange.aggregation"),
        ({"exchange": {"skip_zeros": True}, "push_bound": 0.1}, "either this or push_bound"),
        ({"exchange": {"skip_zeros": True}, "tagging": {"magnitude": True}}, "either this or tagging.magnitude"),
    ],
)
def test_exchanges_of_equal_or_partial_messages_refuse_skipped_zeros(job: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ScenarioError, match=message):
        build_scenario({"name": "x", "transport": "dlcp", "job": [{"name": "j", "trace": "lstm", **ps_job(2, **job)}]})


def test_testbed_refuses_skipped_zeros() -> None:
    with pytest.raises(ScenarioError, match=r"job\[0\].exchange.skip_zeros: simulated only"):
        check_scenario(scenario(ps_job(2, exchange={"skip_zeros": True})))
