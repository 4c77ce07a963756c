"""A process claims its output folders and files, writes them atomically and saves results on a full disk."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gradwire.result_store.folders.output_folder import (
    Claim,
    NumberedClaim,
    new_file,
    new_folder,
    refuse_unwritable,
    run_cleanups,
    write_output,
)
from gradwire.result_store.folders.replacement import claim_output
from gradwire.scenarios import interrupt
from gradwire.scenarios.errors import ResultError


def test_concurrent_threads_claim_distinct_numbered_folders(tmp_path: Path):
    paths: list[Path] = []
    ready = threading.Barrier(8)

    def take() -> None:
        ready.wait()
        claim = NumberedClaim(tmp_path / "demo")
        claim.__enter__()
        paths.append(claim.path)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in paths) == [f"demo-{number:03d}" for number in range(1, 9)]


def test_two_concurrent_demos_claim_distinct_folders(tmp_path: Path):
    with NumberedClaim("results/demo") as first, NumberedClaim("results/demo") as second:
        assert (str(first), str(second)) == ("results/demo-001", "results/demo-002")
        with new_folder(second) as folder:
            (folder / "x").touch()
    assert sorted(path.name for path in Path("results").iterdir()) == ["demo-002"]


def test_failed_claim_removes_its_folders(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), Claim(tmp_path / "a" / "b" / "c"):
        assert (tmp_path / "a" / "b" / "c").is_dir()
        _ = 1 / 0
    assert not (tmp_path / "a").exists()
    refuse_unwritable(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ResultError, match="exists already"):
        Claim(tmp_path).__enter__()
    with pytest.raises(ResultError, match="is not a valid file name"):
        Claim("a\0b").__enter__()


@pytest.mark.parametrize("enter", ["claimed", "claim", "numbered", "forced", "file"])
def test_signal_at_any_line_leaves_no_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enter: str):
    """Python handles signals between instructions; here one arrives before each line of the module in turn."""
    before = signal.signal(signal.SIGTERM, interrupt.on_signal)
    place = tmp_path / "out"
    try:
        for moment in itertools.count():
            interrupt.reset_interrupts()
            monkeypatch.setattr(interrupt, "_last_s", float("-inf"))
            if enter == "forced":
                place.mkdir(exist_ok=True)
                (place / "result.json").write_text('{"format": 1}')
            make = {
                "claimed": lambda: claim_output(place), "claim": lambda: Claim(place), "numbered": lambda: NumberedClaim(place),
                "forced": lambda: claim_output(place, force=True), "file": lambda: new_file(tmp_path / "page.html"),
            }[enter]  # fmt: skip
            lines = Lines(moment)
            try:
                sys.settrace(lines.trace)
                try:
                    with make():
                        if enter == "file":
                            raise ZeroDivisionError
                finally:
                    sys.settrace(None)
            except (KeyboardInterrupt, ZeroDivisionError):
                pass
            run_cleanups()  # as at the end of a process
            left = sorted(path.name for path in tmp_path.iterdir() if path.name != "small.toml")
            assert left == (["out"] if enter == "forced" else []), f"{lines.where}: {left}"
            if enter == "forced":
                assert (place / "result.json").exists(), lines.where
            if lines.left >= 0:
                break
        assert moment > 5
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGTERM, before)


class Lines:
    """Sends this process SIGTERM before the line of the module with a given number."""

    def __init__(self, number: int) -> None:
        self.left, self.where = number, ""

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if Path(frame.f_code.co_filename).name not in ("output_folder.py", "replacement.py", "contextlib.py"):
            return None
        if event == "line":
            if self.left == 0:
                self.where = f"{event} {frame.f_code.co_filename}:{frame.f_lineno}"
                self.left = -1
                os.kill(os.getpid(), signal.SIGTERM)
            elif self.left > 0:
                self.left -= 1
        return self.trace


def test_output_folder_is_claimed_by_one_process_only(tmp_path: Path):
    """An empty folder can be claimed unless another process has claimed it, and an existing folder remains."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with Claim(theirs):
        with pytest.raises(ResultError, match="theirs: is claimed by another program"):
            Claim(theirs).__enter__()
        code = f"from gradwire.result_store.folders.output_folder import new_folder\nwith new_folder({str(theirs)!r}): pass"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert "is claimed by another program" in other.stderr
    assert theirs.is_dir()
    (tmp_path / "link").symlink_to(theirs)
    for place in (tmp_path / "link", tmp_path / "nowhere"):
        if place.name == "nowhere":
            place.symlink_to(tmp_path / "gone")
        with pytest.raises(ResultError, match="exists already"):
            Claim(place).__enter__()


def test_foreign_files_in_a_claimed_folder_remain(tmp_path: Path):
    with Claim(tmp_path / "out") as place:
        (place / "theirs").touch()
        with pytest.raises(ResultError, match="cannot be written"), new_folder(place) as folder:
            (folder / "ours").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_output_file_is_created_atomically(tmp_path: Path):
    with pytest.raises(ResultError, match="no space left"), new_file(tmp_path / "x.png") as partial:
        partial.write_text("half")
        raise OSError(28, "No space left on device")
    assert list(tmp_path.glob("x*")) == []
    with new_file(tmp_path / "x.png") as partial:
        assert partial.suffix == ".png"
        partial.write_text("whole")
    assert (tmp_path / "x.png").read_text() == "whole"
    assert (tmp_path / "x.png").stat().st_mode & 0o777 == 0o666 & ~_umask()
    with pytest.raises(ResultError, match="exists already"), new_file(tmp_path / "x.png"):
        pass


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def full(path: Path) -> None:
    raise OSError(28, "No space left on device")


def test_results_are_written_to_a_spare_folder_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()

    def only_spare(path: Path) -> None:
        if "spare" not in str(path):
            full(path)
        path.mkdir(parents=True)
        (path / "x").touch()

    kept = write_output(tmp_path / "out", only_spare)
    assert kept.place is not None and (kept.place / "x").exists()
    assert (
        str(kept.trouble) == f"--out {tmp_path}/out: no space left on device; the results are in {kept.place} instead"
    )

    def part(path: Path) -> None:
        path.mkdir(parents=True)

    kept = write_output(tmp_path / "out", full, [("one", full), ("two", part)])
    assert kept.place is not None and (kept.place / "two").is_dir()
    assert "partial results are in " in str(kept.trouble)

    kept = write_output(tmp_path / "out", full, [("one", full)])
    assert kept.place is None
    assert "only the printed results remain" in str(kept.trouble)


def test_plot_failure_keeps_the_results(tmp_path: Path):
    def broken(path: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_output(tmp_path / "out", broken, [("one", lambda path: path.mkdir(parents=True))])
    assert (tmp_path / "out" / "one").is_dir()
