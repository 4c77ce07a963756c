"""Reading what nccl-tests and rccl-tests print: several versions of the header, launchers' prefixes, damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.busbw.nccl_tests_log import read_log

NEW = """\
# nccl-tests version 2.17.1 nccl-headers=22706 nccl-library=22706
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid  41 on  a device  0 [0x0f] NVIDIA H100
#  Rank  1 Group  0 Pid  42 on  b device  0 [0x0f] NVIDIA H100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    72.09   14.55   27.27      0    71.93   14.58   27.33      0
     2097152        524288     float     sum      -1    76.24   27.51   51.58    N/A    76.20   27.52   51.60    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 39.425
"""
OLD = """\
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2   float     sum    175.1    0.00    0.00  4e-07    174.8    0.00    0.00  4e-07
"""
NO_REDOP = """\
#       size         count    type    time   algbw   busbw  error
        1024           32   float    22.1    0.05    0.04  0e+00
"""


def written(path: Path, text: str) -> Path:
    (path / "log.txt").write_text(text)
    return path / "log.txt"


def test_new_header(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, NEW))
    assert (log.test, log.ranks, log.skipped) == ("all_reduce", 2, 0)
    first, second = log.rows
    assert (first.size, first.count, first.time_us, first.busbw, first.wrong) == (1048576, 262144, 72.09, 27.27, 0)
    assert (first.in_place_us, first.in_place_busbw) == (71.93, 27.33)
    assert second.wrong == -1  # not checked


@pytest.mark.parametrize("text, size, time, wrong", [(OLD, 8, 175.1, 4e-07), (NO_REDOP, 1024, 22.1, 0.0)])
def test_old_headers(tmp_path: Path, text: str, size: int, time: float, wrong: float) -> None:
    log = read_log(written(tmp_path, text))
    assert [(row.size, row.time_us, row.wrong) for row in log.rows] == [(size, time, wrong)]


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,12]<stdout>: ", "0: ", "node-17: "])
def test_launchers_prefixes(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in NEW.splitlines())
    assert read_log(written(tmp_path, text)) == read_log(written(tmp_path, NEW))


def test_the_last_table_and_damaged_lines(tmp_path: Path) -> None:
    damaged = NEW.replace("    76.24   27.51   51.58    N/A    76.20   27.52   51.60    N/A", "    76.24")
    log = read_log(written(tmp_path, OLD + damaged))
    assert len(log.rows) == 1 and log.rows[0].size == 1048576 and log.skipped == 1


@pytest.mark.parametrize(
    "text, words", [("", "has no table"), ("1 2 3\n", "has no table"), (OLD[: OLD.index("   8  ")], "empty")]
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        read_log(written(tmp_path, text))


def test_binary_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    for name in ("x", "nothing"):
        with pytest.raises(ScenarioError):
            read_log(tmp_path / name)
