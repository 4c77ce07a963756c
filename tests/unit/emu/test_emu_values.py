"""Values that are given: the bytes that workers hand over travel, are added up, and are what is looked for afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from contents_cases import Network
from sim_cases import make_trace, ps_job, scenario

from gradwire.emu.agent.payload.magnitudes import Magnitudes, prepare
from gradwire.emu.agent.payload.values import GivenValues, values_of, write_values
from gradwire.emu.results.verify import verify
from gradwire.result_store.table_schema import KINDS

TRACE = make_trace([[300], [5000]], iterations=2)
SIZES = [tensor.numel for tensor in TRACE.tensors]


def contents(seed: int = 1, workers: int = 2) -> list[list[bytes]]:
    draws = np.random.default_rng(seed)
    return [[draws.normal(size=size).astype(np.float32).tobytes() for size in SIZES] for _ in range(workers)]


def network(folder: Path, numbers: bool = True, lose: float = 0.9) -> tuple[Network, list[list[bytes]]]:
    given = contents()
    job = ps_job(2, push_bound=0.3, tagging={"magnitude": True})
    one = scenario(job, transport={"kind": "dlcp", "payload": "1024B"})
    values = [GivenValues(write_values(folder / "given", given, numbers))]
    return Network(one, TRACE, folder, lose=lose, values=values).run(), given


def test_gradient_returns_the_given_values(tmp_path: Path) -> None:
    given = contents()
    values = values_of(write_values(tmp_path / "given", given, True))
    assert isinstance(values, GivenValues) and values.numel == SIZES and values.widest((0, 1)) == np.float32
    for worker in range(2):
        for tensor in range(2):
            whole = np.frombuffer(given[worker][tensor], dtype=np.float32)
            assert np.array_equal(values.gradient(9, "job", worker, 0, tensor, 0, len(whole)), whole)
            assert np.array_equal(values.gradient(9, "job", worker, 1, tensor, 17, 90), whole[17:107])
    assert isinstance(values_of(prepare([TRACE], tmp_path)[0]), Magnitudes)
    assert json.loads((tmp_path / "given" / "about.json").read_text())["given"] == "float32"


def test_write_values_rejects_contents_of_invalid_size(tmp_path: Path) -> None:
    for wrong in ([[b"1234"], [b"12345678"]], [[b"123"], [b"123"]]):
        with pytest.raises(ValueError, match="different numbers of 4-byte words"):
            write_values(tmp_path / "given", wrong, True)
    assert not (tmp_path / "given").exists()


@pytest.mark.parametrize("numbers", [True, False])
def test_servers_add_up_the_received_values(tmp_path: Path, numbers: bool) -> None:
    """Values are summed as floats or as integer words, with zeros for lost packets."""
    run, given = network(tmp_path, numbers)
    workers = run.program.workers()
    rows, kind = run.program.messages, np.float32 if numbers else np.uint32
    lost = False
    for pull in np.flatnonzero(rows.kind == KINDS.index("pull")).tolist():
        total: np.ndarray | None = None
        for push in run.program.sums[pull]:
            mine = np.frombuffer(given[workers[0, int(rows.src[push])]][int(rows.tensor[push])], dtype=np.uint8).copy()
            have = run.arrivals[push].have
            if have is not None:
                lost = True
                mine *= np.repeat(have, 1024)[: len(mine)]
            values = mine.view(kind)
            total = values if total is None else total + values
        assert total is not None
        assert np.array_equal(np.frombuffer(run.carried[pull], dtype=kind), total)
    assert lost
    assert verify(run.evidence()) == []


@pytest.mark.parametrize("beside", [False, True], ids=["own-hosts", "beside-workers"])
@pytest.mark.parametrize("back", [[4 * 900, 4 * 700], 0.25, 3.0])
def test_answers_longer_or_shorter_than_pushes_carry_the_sum(
    tmp_path: Path, back: float | list[int], beside: bool
) -> None:
    """Answers carry the beginning of the sum, or the sum and zeros. Tensors have 300 and 5000 values in partitions of
    2 KiB. Servers run on separate hosts or beside workers, whose local gradients are part of the sum."""
    given = contents()
    hosts = {"placement": {"workers": ["h0", "h1"], "servers": ["h0", "h1"]}} if beside else {}
    job = ps_job(2, 2, push_bound=0.3, exchange={"partition": "2KiB"}, **hosts)
    one = scenario(job, transport={"kind": "dlcp", "payload": "1024B"})
    values = [GivenValues(write_values(tmp_path / "given", given, True))]
    trace = make_trace([[300], [5000]])
    run = Network(one, trace, tmp_path, lose=0.9, values=values, back=back).run()
    assert verify(run.evidence()) == []
    workers, rows = run.program.workers(), run.program.messages
    pulls = np.flatnonzero(rows.kind == KINDS.index("pull")).tolist()
    came = {0: 0, 1: 0}
    for pull in pulls:
        tensor, first = int(rows.tensor[pull]), int(rows.first[pull])
        parts = []
        own = workers.get((0, int(rows.src[pull])))
        pushes = run.program.sums[pull]
        pushed = int(rows.nbytes[pushes[0]]) // 4
        if own is not None:
            parts.append(np.frombuffer(given[own][tensor], dtype=np.float32)[first : first + pushed])
        for push in pushes:
            mine = np.frombuffer(given[workers[0, int(rows.src[push])]][tensor], dtype=np.float32)[
                first : first + pushed
            ].copy()
            have = run.arrivals[push].have
            if have is not None:
                mine.view(np.uint8)[~np.repeat(have, 1024)[: 4 * len(mine)]] = 0
            parts.append(mine)
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        answer = np.frombuffer(run.carried[pull], dtype=np.float32)
        common = min(len(answer), len(total))
        assert np.array_equal(answer[:common], total[:common]) and not answer[common:].any()
        came[tensor] += len(answer)
    if isinstance(back, list):
        times = len(pulls) / len({(int(rows.tensor[each]), int(rows.first[each])) for each in pulls})
        assert came[0] == times * 900 and came[1] == pytest.approx(times * 700, rel=0.02)


def test_verify_detects_values_other_than_the_given_ones(tmp_path: Path) -> None:
    run, _ = network(tmp_path)
    other = GivenValues(write_values(tmp_path / "other", contents(seed=2), True))
    assert any("has wrong contents" in line for line in verify(run.evidence(magnitudes=[other])))
