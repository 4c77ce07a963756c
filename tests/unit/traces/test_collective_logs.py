"""Logs of collectives: flight recorder, Inspector and several profiles, by hand and damaged."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats_cases import SHARED
from log_cases import dump, entry, inspector_line, write_dump

from gradwire.scenarios.errors import TraceError
from gradwire.traces.collective_logs import flight_recorder, inspector
from gradwire.traces.collective_logs.example_job import Fault, JobShape, example_job
from gradwire.traces.collective_logs.loading import load_logs
from gradwire.traces.collective_logs.pickle_data import load_plain
from gradwire.traces.collective_logs.records import COLUMNS, KINDS, UNKNOWN, CollectiveLog, bus_factor
from gradwire.traces.collective_logs.ring_times import RingChannel, ring_ends


def column(log: CollectiveLog, name: str) -> list[int]:
    values: list[int] = getattr(log, name).tolist()
    return values


# --- flight recorder


def test_a_dump_of_two_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        entries = [entry(7, "all_reduce"), entry(8, "_all_gather_base"), entry(9, "_reduce_scatter_base", "started")]
        del entries[2]["duration_ms"]
        write_dump(tmp_path, rank, dump(entries))
    log = load_logs([tmp_path]).log
    assert log.ranks == (0, 1) and log.world_size == 2 and log.groups[0].members == (0, 1)
    assert column(log, "sequence") == [7, 8, 9] * 2
    assert [KINDS[kind] for kind in column(log, "kind")[:3]] == ["all_reduce", "all_gather", "reduce_scatter"]
    assert column(log, "nbytes")[:3] == [4000, 8000, 4000]  # an all-gather's buffer is its output
    assert column(log, "duration_ns")[:3] == [1_500_000, 1_500_000, UNKNOWN]
    assert [(group, sequence, len(rows)) for group, sequence, rows in log.calls()] == [(0, 7, 2), (0, 8, 2), (0, 9, 2)]


@pytest.mark.parametrize("version", [f"2.{minor}" for minor in range(3, 11)])
def test_versions(tmp_path: Path, version: str) -> None:
    old = entry(3)
    if version == "2.3":
        old["seq_id"] = old.pop("collective_seq_id")
    content = dump([old], version)
    if version == "2.10":
        content["comm_lib_version"] = content.pop("nccl_version")
    log = load_logs([write_dump(tmp_path, 0, content)]).log
    assert column(log, "sequence") == [3] and log.about == {"version": version, "NCCL": "2.27.3"}


def test_json_and_zipped_dumps(tmp_path: Path) -> None:
    (tmp_path / "trace_rank_0.json").write_text(json.dumps(dump([entry(1)])))
    (tmp_path / "trace_rank_1.json.gz").write_bytes(gzip.compress(json.dumps(dump([entry(1)])).encode()))
    log = load_logs([tmp_path]).log
    assert log.ranks == (0, 1) and len(list(log.calls())) == 1


def test_what_a_dump_leaves_out_is_counted(tmp_path: Path) -> None:
    odd: list[Any] = [entry(1), entry(2, "coalesced"), entry(3, state="lost"), entry(4, duration_ms=-1.0), 5]
    odd += [entry(6, input_dtypes=["Quaternion"]), entry(-1)]
    log = load_logs([write_dump(tmp_path, 0, dump(odd))]).log
    assert column(log, "sequence") == [1, 4, 6]
    assert +log.skipped == {
        "operation nccl:coalesced": 1,
        'entries with the state "lost"': 1,
        "durations that are no times": 1,
        "entries that are no dictionaries": 1,
        "entries with sizes or types that are not known": 1,
        "entries without a sequence number": 1,
    }


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps(dump([Attack()]), protocol=protocol))
    with pytest.raises(TraceError, match=r"run code|unknown format|neither"):
        load_logs([path])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_read_as_pickle_does(protocol: int) -> None:
    data: Any = {
        "a": [1, -1, 255, 256, 65536, 2**31, 2**80, -(2**63), 1.5, None, True, False],
        "b": ((), (1,), (1, 2), (1, 2, 3)),
    }
    data |= {"c": [list(range(2000)), {f"key {n}": {n: str(n)} for n in range(600)}], "e": "a" * 300}
    data["f"] = data["c"]
    data |= {"d": b"bytes"} if protocol > 2 else {}  # older ones write bytes as a call
    data["g"] = (1, 2, 3, 4, 5)
    assert load_plain(pickle.dumps(data, protocol=protocol), "here") == data


def test_a_memo_number_out_of_order_is_refused() -> None:
    with pytest.raises(TraceError, match="memo number 4294967295"):
        load_plain(b"\x80\x02}r\xff\xff\xff\xff.", "here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"entries": 3, "version": "2.9"}, "no list of entries"),
        (dump([entry(1)], version="3.0"), 'has version "3.0"'),
        (dump([]), "no collectives"),
    ],
)
def test_dumps_that_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load_logs([write_dump(tmp_path, 0, content)])


def test_a_rank_comes_once_and_has_a_number(tmp_path: Path) -> None:
    path = write_dump(tmp_path, 0, dump([entry(1)]))
    (tmp_path / "again_0").write_bytes(path.read_bytes())
    with pytest.raises(TraceError, match="holds rank 0, as"):
        load_logs([tmp_path])
    (tmp_path / "alone").mkdir()
    unnamed = tmp_path / "alone" / "dump"
    unnamed.write_bytes(path.read_bytes())
    with pytest.raises(TraceError, match="no rank in its name"):
        load_logs([unnamed])
    with pytest.raises(TraceError, match="holds no log of collectives"):
        (tmp_path / "empty").mkdir()
        load_logs([tmp_path / "empty"])


def test_groups_of_one_name_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    for rank, ranks in ((0, "[0, 1]"), (2, "[2, 3]")):
        content = dump([entry(1)])
        content["pg_config"]["0"]["ranks"] = ranks
        write_dump(tmp_path, rank, content)
    assert [group.members for group in load_logs([tmp_path]).log.groups] == [(0, 1), (2, 3)]


# --- Inspector


def test_inspector_lines(tmp_path: Path) -> None:
    trace = {
        "coll_start_ts": 5,
        "kernel_events": [{"kernel_start_ts": 12, "kernel_stop_ts": 90}, {"kernel_start_ts": 10, "kernel_stop_ts": 95}],
    }
    for rank in (0, 1):
        lines = [
            inspector_line(rank, 1, pid=10 + rank, event_trace_ts=trace),
            inspector_line(rank, 2, pid=10 + rank, coll="AllGather"),
        ]
        (tmp_path / f"host-pid{rank}.log").write_text("\n".join([*lines, ""]))
    log = load_logs([tmp_path]).log
    assert log.ranks == (0, 1) and log.hosts == {0: "a", 1: "a"} and log.groups[0].members == (0, 1)
    assert column(log, "nbytes") == [4000, 8000] * 2  # an all-gather's size is that of a share
    assert column(log, "duration_ns") == [100_000] * 4
    assert column(log, "start_ns")[:2] == [10_000, UNKNOWN] and column(log, "end_ns")[:2] == [95_000, UNKNOWN]


def test_a_smaller_communicator_gets_global_ranks(tmp_path: Path) -> None:
    lines = [inspector_line(rank, 1, pid=rank + 1) for rank in (0, 1)]
    lines += [inspector_line(0, 1, pid=2, header={"id": "0x2", "n_ranks": 1})]
    (tmp_path / "all.log").write_text("\n".join(lines))
    log = load_logs([tmp_path]).log
    assert [group.members for group in log.groups] == [(0, 1), (1,)] and column(log, "rank") == [0, 1, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"header": {"id": 3, ', "line 1: is not JSON"),
        ('{"header": {"rank": 0}, "metadata": {"inspector_output_format_version": "v9"}}', 'format version "v9"'),
        (inspector_line(2, 1, pid=1), "rank 2 of 2"),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "one.log").write_text(line)
    with pytest.raises(TraceError, match=message):
        load_logs([tmp_path / "one.log"])


# --- round trips of an invented job


SMALL = JobShape(ranks=16, layout="tensor_data", iterations=3, layers=2, has_times=True)


def test_writers_and_readers_agree(tmp_path: Path) -> None:
    log = example_job(SMALL, Fault("straggler", 5, 1.5), 1)
    flight_recorder.write(log, tmp_path / "pickles")
    flight_recorder.write(log, tmp_path / "json", as_json=True)
    inspector.write(log, tmp_path / "inspector")
    expected = {name: getattr(log, name) for name in COLUMNS}
    for folder, exact in (("pickles", True), ("json", True), ("inspector", False)):
        back = load_logs([tmp_path / folder]).log
        assert (back.ranks, back.hosts, back.totals()) == (log.ranks, log.hosts, log.totals())
        ours, theirs = (
            np.lexsort((one.sequence, [one.groups[g].name for g in one.group.tolist()], one.rank))
            for one in (log, back)
        )
        durations = back.duration_ns[theirs] - expected["duration_ns"][ours]
        assert np.abs(durations).max() <= (1 if exact else 501)  # the Inspector has microseconds
    assert (back.start_ns[theirs] // 1000 == expected["start_ns"][ours] // 1000).all()


def test_the_bandwidth_of_a_line_is_that_of_nccl_tests(tmp_path: Path) -> None:
    log = example_job(SMALL, Fault("healthy"), 1)
    files = inspector.write(log, tmp_path / "lines")
    values = json.loads(files[0].read_text().splitlines()[0])["coll_perf"]
    assert values["coll"] == "AllReduce"
    bus = 32e6 / values["coll_exec_time_us"] / 1e3 * 2 * 7 / 8
    assert values["coll_busbw_gbs"] == pytest.approx(bus, rel=1e-4)
    assert bus_factor("all_gather", 8) == 7 / 8 and bus_factor("broadcast", 8) == 1


# --- rings


def test_a_healthy_ring_takes_its_steps() -> None:
    channel = RingChannel(range(4), [1e9] * 4, [1e-6] * 4, [()] * 4)
    assert ring_ends("all_reduce", 4_000_000, [channel], 1.0) == pytest.approx([1 + 6 * (1e-3 + 1e-6)] * 4)
    assert ring_ends("all_gather", 4_000_000, [channel], 0.0) == pytest.approx([3 * (1e-3 + 1e-6)] * 4)


def test_behind_a_slow_link_members_finish_one_after_the_other() -> None:
    channel = RingChannel(range(4), [1e9, 0.25e9, 1e9, 1e9], [0.0] * 4, [()] * 4)
    ends = ring_ends("all_reduce", 4_000_000, [channel], 0.0)
    # 6 chunks over the slow link; the next members have one step less of it each
    assert ends[1:] == pytest.approx([0.024, 0.021, 0.018])


def test_an_interruption_delays_only_those_that_still_wait() -> None:
    whole = RingChannel(range(4), [1e9] * 4, [0.0] * 4, [(), [(0.0055, 0.1)], (), ()])
    ends = ring_ends("all_reduce", 4_000_000, [whole], 0.0)  # in the last of six steps
    assert ends == pytest.approx([0.006, 0.1005, 0.006, 0.006])
    before = RingChannel(range(4), [1e9] * 4, [0.0] * 4, [(), [(0.0, 0.1)], (), ()])
    assert (ring_ends("all_reduce", 4_000_000, [before], 0.0) > 0.1).all()


# --- several profiles


def profile(rank: int, begin: float, late: float, **header: Any) -> dict[str, Any]:
    """Return a profile of one step: a compute kernel, then an all-reduce that half overlaps the next one."""

    def kernel(name: str, at: float, length: float, **args: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "ts": begin + at,
            "dur": length,
            "pid": 0,
            "tid": 7,
            "args": args,
        }

    comm = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16", "Process Group Name": "0"}
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": begin, "dur": 1000, "pid": 1, "tid": 1},
        kernel("gemm", 10, 100 + late),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 110 + late, 200 - late, **comm),
        kernel("gemm", 210, 200),
    ]
    info = {"distributedInfo": {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}}
    return {"schemaVersion": 1, **info, **header, "traceEvents": events}


def test_profiles_of_a_job_are_matched(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(profile(0, 1000.0, 0.0)))
    (tmp_path / "b.json").write_text(json.dumps(profile(1, 9_000_000.0, 50.0)))
    loaded = load_logs([tmp_path])
    ((group, sequence, rows),) = loaded.log.calls()
    assert (group, sequence, loaded.log.duration_ns[rows].tolist()) == (0, 3_000_000, [200_000, 150_000])
    assert column(loaded.log, "nbytes") == [2000, 2000]
    first, second = loaded.activities
    assert (first.span, first.busy, first.compute, first.communication, first.overlap) == (400, 400, 300, 200, 100)
    assert (second.idle, second.communication, second.overlap) == (0, 150, 100)
    assert first.overlap_share == 0.5 and first.steps == 1


def test_sequence_numbers_of_profiles_come_first(tmp_path: Path) -> None:
    content = profile(0, 1000.0, 0.0)
    content["traceEvents"][2]["args"]["Seq"] = 41
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert column(load_logs([tmp_path]).log, "sequence") == [41]


def test_a_profile_needs_a_rank(tmp_path: Path) -> None:
    content = profile(0, 1000.0, 0.0, distributedInfo={})
    (tmp_path / "profile.json").write_text(json.dumps(content))
    with pytest.raises(TraceError, match="has no rank"):
        load_logs([tmp_path / "profile.json"])
    (tmp_path / "rank-3.json").write_text(json.dumps(content))
    assert load_logs([tmp_path / "rank-3.json"]).log.ranks == (3,)


REAL = SHARED / "traces" / "kineto_ddp_2gpu.json.gz"


@pytest.mark.skipif(not REAL.exists(), reason="no ../shared/data/traces with public recordings")
def test_a_real_profile_against_a_sweep_over_its_events() -> None:
    loaded = load_logs([REAL])
    events = [e for e in json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    edges = []
    for event in device:
        kind = "copy" if event["cat"] != "kernel" else "comm" if "nccl" in event["name"] else "compute"
        edges += [(event["ts"], 1, kind), (event["ts"] + event["dur"], -1, kind)]
    running = {"copy": 0, "comm": 0, "compute": 0}
    busy = overlap = 0.0
    last = min(edges)[0]
    for at, change, kind in sorted(edges, key=lambda edge: (edge[0], -edge[1])):
        busy += (at - last) * any(running.values())
        overlap += (at - last) * bool(running["comm"] and running["compute"])
        running[kind] += change
        last = at
    (activity,) = loaded.activities
    assert activity.busy == pytest.approx(busy) and activity.overlap == pytest.approx(overlap)
    calls = [e["args"] for e in device if "Collective name" in e.get("args", {})]
    assert loaded.log.totals()["all_reduce"][1] == sum(
        4 * args["In msg nelems"] for args in calls if args["Collective name"] == "allreduce"
    )
