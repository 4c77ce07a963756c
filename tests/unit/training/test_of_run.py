"""What a run lost, lost in a training: masks out of the tables of its Result, by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

torch = pytest.importorskip("torch")

from gradwire.result_store.result import Result  # noqa: E402
from gradwire.scenarios.errors import ResultError, ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.sim.simulate import simulate  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.traces.trace import load_trace  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.exchange.ring_allreduce import RingLayout, buckets_of  # noqa: E402
from gradwire.training.loss_replay.result_loss_network import ResultLossNetwork  # noqa: E402
from gradwire.training.networks.builtin_networks import Pushed  # noqa: E402

JOB = [
    "job.workers=4", "job.iterations=3", "topology.hosts=6", "output.missing=true", "link.loss=0.02", "job.push_bound=0.3",
]  # fmt: skip
RING = [
    'job.exchange={kind="ring", bucket="256KiB"}',
    "job.servers=0",
    "job.pull_bound=0.3",
    "job.pull_important=false",
]
MODEL = [
    'training.model="resnet20"', "training.size=8", "training.samples=200", "training.batch=2", "training.steps=4", "training.augment=false",
]  # fmt: skip


def asked(*more: str):
    return load_scenario("train-tiny", set=[*JOB, *MODEL, *more], policy="dlcp")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (
        ("servers", ["job.servers=2"]),
        ("back", ["job.servers=1", "job.pull_bound=0.3", "job.pull_important=false"]),
        ("ring", RING),
    ):
        simulate(asked(*more)).write(folder / name)
    return folder


def pushed(step: int, ring: bool = False) -> Pushed:
    infos = load_trace("resnet20").tensors
    layout = None
    if ring:
        numels = tuple(info.numel for info in infos)
        layout = RingLayout(numels, buckets_of(numels, 2**18), 4, 4096)
    return Pushed(step, 0, 4096, infos, [[Encoded((torch.zeros(info.numel),)) for info in infos]] * 4, layout)


@pytest.mark.parametrize("name", ["servers", "back"])
def test_masks_equal_missing_packets_of_run(runs: Path, name: str) -> None:
    """Masks agree with the tables for every iteration, worker and tensor, in both directions. Packets are at the
    offsets of the tables, partitions one after the other."""
    result = Result.read(runs / name)
    messages = result.messages.to_pylist()
    hosts = sorted({row["src"] for row in messages if row["kind"] == "push"}, key=lambda host: int(host[1:]))
    begins: dict[tuple[int, int], int] = {}
    for tensor in {row["tensor"] for row in messages}:
        sizes = {row["part"]: row["bytes"] for row in messages if row["tensor"] == tensor}
        at = 0
        for part in sorted(sizes):
            begins[tensor, part], at = at, at + sizes[part]
    gone = set()
    for row in result.missing.to_pylist():
        message = messages[row["message"]]
        back = message["kind"] == "pull"
        worker = hosts.index(message["dst"] if back else message["src"])
        first = (begins[message["tensor"], message["part"]] + row["offset"]) // 4096
        gone |= {(message["iteration"], back, worker, message["tensor"], first + n) for n in range(row["packets"])}
    network = ResultLossNetwork(runs / name)
    found, times = set(), []
    for step in range(3):
        answer = network.carry(pushed(step))
        times.append(answer.time_ps)
        for back, rows in ((False, answer.arrived), (True, answer.pulled)):
            for worker, row in enumerate(rows):
                for tensor, mask in enumerate(row):
                    found |= {
                        (step, back, worker, tensor, int(n))
                        for n in ([] if mask is None else np.flatnonzero(~mask.numpy()))
                    }
    assert found == gone and {each[0] for each in gone} == {0, 1, 2} and {each[1] for each in gone} >= {name == "back"}
    ends = [max(row["end_ps"] for row in result.iterations.to_pylist() if row["iteration"] == n) for n in range(3)]
    assert times == [ends[0], ends[1] - ends[0], ends[2] - ends[1]]
    again = network.carry(pushed(4))
    assert again.time_ps == times[1], "from the first one again"


def test_ring_hop_masks_equal_missing_packets_of_run(runs: Path) -> None:
    """Packet counts agree for each sender, half and bucket."""
    result, network = Result.read(runs / "ring"), ResultLossNetwork(runs / "ring")
    messages, counted = result.messages.to_pylist(), {}
    for row in result.missing.to_pylist():
        message = messages[row["message"]]
        key = message["iteration"], message["kind"] == "all_gather", int(message["src"][1:]), message["part"] // 4
        counted[key] = counted.get(key, 0) + row["packets"]
    found = {}
    for step in range(3):
        hops = network.carry(pushed(step, ring=True)).hops
        assert [sorted(each) for each in hops.buckets] and sorted(sum(hops.buckets, ())) == list(range(59))
        for bucket, mask in enumerate(hops.masks):
            for half in (False, True):
                lost = (~mask[3 * half : 3 * half + 3]).sum(dim=(0, 2)) if mask is not None else [0] * 4
                found |= {(step, half, worker, bucket): int(n) for worker, n in enumerate(lost) if n}
    workers = {host: at for at, host in enumerate(sorted({key[2] for key in counted}))}
    assert found == {(step, half, workers[host], bucket): n for (step, half, host, bucket), n in counted.items()}
    assert {key[1] for key in found} == {False, True}


@pytest.mark.parametrize("name", ["servers", "ring"])
def test_training_replays_losses_and_times_of_run(runs: Path, name: str, tmp_path: Path) -> None:
    more = RING if name == "ring" else ["job.servers=2"]
    learned = train(
        asked(*more, f'training.network={{replay="{runs / name}"}}', "training.score_every=2"), tmp_path / "out"
    )
    network = ResultLossNetwork(runs / name)
    assert [row["time_ps"] for row in learned.steps] == [network.steps[n % 3].time_ps for n in range(4)]
    assert all(0 < row["lost"] < 0.3 for row in learned.steps)


def test_resync_of_ring_replayed_from_run_is_rejected(runs: Path) -> None:
    """The error comes before the first step, and not when the resync is due."""
    with pytest.raises(ScenarioError, match=r"training\.resync: .*ring is the Result of a run, without a time"):
        train(asked(*RING, "training.resync=3", f'training.network={{replay="{runs / "ring"}"}}'))


def test_ignored_bucket_size_is_named_in_summary(runs: Path) -> None:
    asked_for = [
        *RING[1:],
        'job.exchange={kind="ring", bucket="1MiB"}',
        f'training.network={{replay="{runs / "ring"}"}}',
    ]
    assert "job.exchange.bucket" in train(asked(*asked_for)).summary["replayed"]["otherwise"]


@pytest.mark.parametrize(("more", "words"), [
    (["job.workers=3"], "workers 4 there, 3 here"),
    (["transport.payload=8KiB"], "payload 4096 there, 8192 here"),
    (['training.model="resnet8"'], "tensors of other sizes"),
    (RING, "exchange parameter_server there, ring here"),
    (['training.reducer={kind="topk"}'], "reducer none there, topk here"),
    (['training.system={kind="slimdp"}'], "that sent gradients, not slimdp"),
])  # fmt: skip
def test_replay_of_incompatible_run_is_rejected(runs: Path, more: list[str], words: str) -> None:
    with pytest.raises(ScenarioError, match=rf"training\.network\.replay.*{words}"):
        train(asked("job.servers=2", f'training.network={{replay="{runs / "servers"}"}}', *more))


def test_runs_without_usable_loss_records_are_rejected(runs: Path, tmp_path: Path) -> None:
    simulate(asked("job.servers=1", "output.missing=false", "job.iterations=1")).write(tmp_path / "silent")
    with pytest.raises(ResultError, match="did not record missing packets; expected the Result of a run with one job"):
        ResultLossNetwork(tmp_path / "silent")
    simulate(
        asked('job.exchange={kind="halving_doubling"}', "job.servers=0", "job.iterations=1", "job.push_bound=0.0")
    ).write(tmp_path / "other")
    with pytest.raises(ResultError, match="other: is of halving_doubling"):
        ResultLossNetwork(tmp_path / "other")
    (tmp_path / "silent" / "result.json").write_text("{")
    with pytest.raises(ResultError, match=r"result\.json"):
        ResultLossNetwork(tmp_path / "silent")


def test_iterations_with_messages_in_flight_are_not_replayed(runs: Path, tmp_path: Path) -> None:
    """In a run that was ended, workers may have finished an iteration whose pulls are still in flight."""
    whole = Result.read(runs / "back")
    ends = np.array(whole.messages["end_ps"])[np.array(whole.messages["iteration"]) == 1]
    simulate(
        asked("job.servers=1", "job.pull_bound=0.3", "job.pull_important=false", f"duration={ends.max() - 1}ps")
    ).write(tmp_path / "ended")
    (iteration,) = {
        row["iteration"]
        for row in Result.read(tmp_path / "ended").messages.to_pylist()
        if row["end_ps"] < 0 and row["iteration"] < 2
    }
    assert len(ResultLossNetwork(tmp_path / "ended").steps) == iteration == 1
    first = min(row["end_ps"] for row in whole.messages.to_pylist())
    simulate(asked("job.servers=1", f"duration={first}ps")).write(tmp_path / "early")
    with pytest.raises(
        ResultError, match="has no iteration that all workers have finished, and whose messages have all been delivered"
    ):
        ResultLossNetwork(tmp_path / "early")


@pytest.mark.parametrize(
    ("column", "value"), [("packet", -1), ("packets", 10**8), ("packets", 0), ("bytes", 5 * 10**8)]
)
def test_damaged_missing_packet_table_is_rejected(runs: Path, tmp_path: Path, column: str, value: int) -> None:
    shutil.copytree(runs / "servers", tmp_path / "copy")
    place = tmp_path / "copy" / "missing.parquet"
    table = parquet.read_table(place)
    values = table[column].to_numpy().copy()
    values[0] = value
    changed = table.set_column(table.column_names.index(column), table.schema.field(column), [values])
    for made in (changed, pyarrow.concat_tables([table, table])):
        parquet.write_table(made, place)
        with pytest.raises(
            ResultError, match=r"missing\.parquet: (is damaged|packet is -1 in row 0; expected a number from 0)"
        ):
            ResultLossNetwork(tmp_path / "copy")


@pytest.mark.parametrize(("more", "words"), [
    (["job.exchange.staleness=2"], r"job\.exchange\.staleness applies to simulated jobs"),
    (["job.accumulate=2"], r"job\.accumulate 2 micro-batches"),
    (["job.exchange.partition=10000B"], r"has messages of 10000 bytes.*partition is a multiple of 4096 bytes"),
])  # fmt: skip
def test_runs_with_untrainable_job_settings_are_rejected(tmp_path: Path, more: list[str], words: str) -> None:
    simulate(asked("job.servers=1", "job.iterations=1", *more)).write(tmp_path / "run")
    with pytest.raises(ResultError, match=words):
        ResultLossNetwork(tmp_path / "run")
