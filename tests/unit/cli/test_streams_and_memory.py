"""Standard streams that are closed or full, and memory that runs out: one message, the right status, a Result kept."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from pathlib import Path

import pytest
from output_cases import SMALL, gradwire_command

from gradwire.result_store.result import Result
from gradwire.scenarios.errors import NO_MEMORY, TraceError, is_memory_shortage


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of `bash` in which "$@" stands for `gradwire` with arguments."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *gradwire_command(*arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("streams", "status"), [(">&-", 2), ("2>&-", 0), ("<&-", 0), (">&- 2>&- <&-", 2), (">/dev/full 2>/dev/full", 2), ("2>/dev/full", 0)]
)  # fmt: skip
def test_result_is_written_with_closed_or_full_streams(own_directory: Path, streams: str, status: int):
    Path("small.toml").write_text(SMALL)
    done = shell(f'"$@" {streams}', "run", "small.toml", "--out", "out")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert Result.read("out").summary["name"] == "small"


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", ">&-", ">&- 2>&-"])
def test_refusal_exits_with_2_with_closed_or_full_streams(own_directory: Path, streams: str):
    done = shell(f'"$@" {streams}', "check", "nowhere.toml")
    assert done.returncode == 2
    assert done.stdout == "" and "Traceback" not in done.stderr


def test_closed_standard_output_is_reported(own_directory: Path):
    Path("small.toml").write_text(SMALL)
    done = shell('"$@" >&-', "check", "small.toml")
    assert (done.returncode, done.stderr) == (2, "gradwire: standard output: Bad file descriptor\n")


def test_run_piped_into_head_writes_its_result(own_directory: Path):
    Path("small.toml").write_text(SMALL)
    done = shell('"$@" | head -n 1; exit ${PIPESTATUS[0]}', "run", "small.toml", "--out", "out")
    assert (done.returncode, done.stdout.split()) == (0, ["small"])
    assert Result.read("out").summary["name"] == "small"


@pytest.mark.parametrize(
    ("gigabytes", "message"),
    [(0.1, "is 0.1 GB; expected no limit"), (0.6, "is 0.6 GB; expected no limit"), (1.6, "is 1.6 GB; expected no limit"),
     (4, "GB of addresses: ")],
)  # fmt: skip
def test_insufficient_virtual_memory_is_reported(own_directory: Path, gigabytes: float, message: str):
    limit = int(gigabytes * 10**9)
    done = subprocess.run(
        gradwire_command("run", "demo", "--set", "job.iterations=1", "--out", "out"), capture_output=True, text=True,
        timeout=120, check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    *progress, error = done.stderr.splitlines()
    assert message in error and "ulimit -v" in error and not any("gradwire:" in line for line in progress)
    assert not os.path.exists("out")


SHORTAGES = (
    MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("can't start new thread"),
    OSError("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ImportError("libx.so: failed to map segment from shared object"),
)  # fmt: skip


@pytest.mark.parametrize("shortage", SHORTAGES, ids=str)
def test_memory_shortage_while_reading_is_not_reported_as_file_damage(shortage: Exception):
    assert is_memory_shortage(shortage)
    with pytest.raises(TraceError) as raised:
        try:
            raise shortage
        except Exception as error:
            raise TraceError(f"truncated or damaged ({error})", "trace.parquet", "a complete file") from None
    assert str(raised.value) == f"trace.parquet: {NO_MEMORY[0]}; expected {NO_MEMORY[1]}"


def test_other_errors_are_not_reported_as_memory_shortage():
    for error in (ValueError("x"), OSError(errno.ENOENT, "no such file"), RuntimeError("out of range")):
        assert not is_memory_shortage(error)
    assert TraceError("damaged").what == "damaged"
