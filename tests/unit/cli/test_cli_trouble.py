"""The command line in trouble: output that cannot be written, input without an end, numbers that make no sense.

Everything is one message and exit code 2, without a traceback or a hang; nothing is left half-written, and nothing that
was computed gets lost.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from output_cases import SMALL, gradwire_command, run

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
from gradwire.result_store.result import Result
from gradwire.scenarios import interrupt
from gradwire.scenarios.errors import ResultError

RUN = ("run", "small.toml")


@pytest.fixture(autouse=True)
def small(own_directory: Path) -> None:
    Path("small.toml").write_text(SMALL)


def refused(*arguments: str, timeout: float = 30) -> str:
    """The one message of a command that is refused before anything is simulated."""
    before = sorted(Path().iterdir())
    done = run(*arguments, timeout=timeout)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "compiling" not in done.stderr
    assert done.stderr.count("gradwire: ") == 1
    assert sorted(Path().iterdir()) == before
    return done.stderr


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("small.toml/x", "has a parent that is not a folder"),
        ("small.toml", "exists already"),
        (".", "exists already"),
        ("n" * 300, "the name is too long"),
        ("deep/" + "n" * 300, "the name is too long"),
        ("/proc/mine", "gradwire: /proc/mine: "),
    ],
)
@pytest.mark.parametrize("command", [("run", "small.toml"), ("compare", "small.toml"), ("demo",), ("emulate", "small.toml"), ("fidelity", "small.toml")])  # fmt: skip
def test_unusable_output_path_is_refused_before_the_run(command: tuple[str, ...], out: str, words: str):
    assert words in refused(*command, "--out", out)


@pytest.mark.skipif(os.geteuid() == 0, reason="for root no folder is read-only")
def test_read_only_output_folder_is_refused_before_the_run():
    Path("locked").mkdir(mode=0o500)
    assert "permission denied" in refused(*RUN, "--out", "locked/x")


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
        if Path(frame.f_code.co_filename).name not in ("output.py", "replacing.py", "contextlib.py"):
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


@pytest.mark.slow
def test_file_size_limit_keeps_the_printed_table():
    assert run(*RUN).returncode == 0  # compiled

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

    command = gradwire_command(*RUN, "--out", "out")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=small_files)
    assert done.returncode == 2
    assert "slowdown, max" in done.stdout
    assert "exceeds the file size limit of the shell or file system" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("out").exists()


def on_a_disk(options: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command, by default a run, whose output is to go to a file system of its own at disk, mounted with `options`."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace of its own (root)")
    Path("disk").mkdir()
    inner = " ".join(gradwire_command(*(command or (*RUN, "--out", "disk/out"))))
    script = f"mount -t tmpfs -o {options} none disk && TMPDIR=spare exec {inner}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    if "mount:" in done.stderr:
        pytest.skip("mount is not allowed")
    return done


def test_read_only_file_system_is_refused_before_the_run():
    done = on_a_disk("ro")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("gradwire: disk/out: is on a read-only file system; expected a writable folder\n")


@pytest.mark.slow
def test_run_on_a_full_disk_writes_results_to_tmpdir(tmp_path: Path):
    assert run(*RUN).returncode == 0
    (tmp_path / "spare").mkdir()
    done = on_a_disk("size=8k")
    assert done.returncode == 2, done.stderr
    assert f"no space left on device; the results are in {tmp_path}/spare/gradwire-" in done.stderr
    assert "slowdown, max" in done.stdout
    (place,) = (tmp_path / "spare").glob("*/out")
    assert Result.read(place).summary["name"] == "small"


@pytest.mark.slow
@pytest.mark.parametrize(("option", "file"), [("--pcap", "p.pcapng"), ("--plot", "p.png")])
def test_capture_and_plot_on_a_full_disk_are_refused(option: str, file: str, tmp_path: Path):
    changes = ["--set", "output.packet_log=true", "--set", "output.queue_samples=1us", "--set", "traffic.size=2MB"]
    assert run(*RUN, *changes, "--out", "seen", timeout=200).returncode == 0
    done = on_a_disk("size=8k", "telemetry", "seen", option, f"disk/{file}")
    assert done.returncode == 2
    assert done.stderr == f"gradwire: disk/{file}: no space left on device; expected a folder with free space\n"


# Input


@pytest.mark.slow
def test_pipes_devices_and_huge_files_are_refused_as_input():
    os.mkfifo("pipe")
    os.mkfifo("pipe.toml")
    for name in ("/dev/zero", "pipe", "pipe.toml", "/dev/stdin"):
        assert "is not a regular file" in refused("check", name, timeout=20)
    for name in ("/dev/zero", "pipe"):
        table = f"traffic=[{{name='l', kind='flows', file='{Path(name).absolute()}'}}]"
        assert "is not a regular file" in refused("check", "websearch", "--set", table, timeout=20)
        changes = ["--set", f'traffic.sizes="{Path(name).absolute()}"']
        assert "is not a regular file" in refused("check", "websearch", *changes, timeout=20)
        assert "is not a regular file" in refused("trace", "import", name, "--out", "x", timeout=20)
    with Path("large.toml").open("wb") as file:
        file.truncate(10**9)
    assert "is larger than 8MiB" in refused("check", "large.toml", timeout=20)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "{a=" * 3000 + "1" + "}" * 3000])
def test_deeply_nested_toml_is_refused(text: str):
    Path("deep.toml").write_text(text)
    assert "is not TOML: too deeply nested brackets" in refused("check", "deep.toml")


def test_byte_order_mark_is_accepted():
    Path("bom.toml").write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert run("check", "bom.toml").stdout.startswith("small is valid: base\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("job.iterations=100000000000000000000", "job[0].iterations: is out of range"),
        ("job.compute_scale=1e308", "job[0].compute_scale: is out of range"),
        ("job.jitter=100.0", "job[0].jitter: is out of range"),
        ("switch.buffer_alpha=true", "switch.buffer_alpha: is of the wrong type (got true)"),
        ("link.rate=１００Gbps", "link.rate: is not a rate"),
        ("job.trace=", "job[0].trace: is empty"),
        ("traffic.load=0.5", "the scenario has no [[traffic]]"),
        ("job[０].workers=3", "is not an override"),
    ],
)
def test_invalid_override_values_are_refused(change: str, words: str):
    assert words in refused("check", "demo", "--set", change)


def test_single_mistake_is_reported_once():
    said = refused("check", "demo", "--set", "job.placement.workers=1").splitlines()
    assert said[1:] == ["  job[0].placement.workers: is of the wrong type (got 1); expected a list"]
    assert "is empty" in refused("check", "demo", "--trace", "")
    assert "the scenario has no [[job]]" in refused("check", "websearch", "--trace", "resnet50")


def test_excessive_thread_and_rank_counts_are_refused():
    assert "128" in refused_usage("run", "small.toml", "--threads", "99999999999")
    assert "at most 65536 ranks" in refused(
        "trace", "export", "resnet50", "--format", "chakra", "--ranks", "100000000", "--out", "job"
    )


def refused_usage(*arguments: str) -> str:
    done = run(*arguments, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_relative_paths_in_overrides_use_the_working_directory(tmp_path: Path):
    (tmp_path / "flows.txt").write_text("1\n0 1 3 100 5000 0.0\n")
    change = 'traffic=[{name="l", kind="flows", file="flows.txt"}]'
    done = run("check", "websearch", "--set", change, "--set", "transport=dctcp")
    assert done.returncode == 0, done.stderr
    (tmp_path / "mine").mkdir()
    for name in ("./mine", "mine"):
        assert f"{tmp_path}/mine" in refused("check", "demo", "--trace", name)


def test_chosen_policy_does_not_require_a_valid_base_scenario(tmp_path: Path):
    from gradwire.scenarios.loading.load import load_scenario

    changes = ["job.workers=3", "job.push_bound=0.05"]
    text = (Path(__file__).resolve().parents[3] / "docs" / "scenario.md").read_text(encoding="utf-8")
    (tmp_path / "example.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    chosen = load_scenario("example.toml", set=changes, policy="bounded-loss")
    assert (chosen.policy_name, chosen.job[0].push_bound, chosen.job[0].workers) == ("bounded-loss", 0.05, 3)
    change = 'policy[1].set.transport={kind="dlcp", floor=16}'
    assert load_scenario("example.toml", set=[change], policy="bounded-loss").transport.floor == 16  # type: ignore[union-attr]
    assert (
        load_scenario("example.toml", set=["transport.initial_window=20"], policy="reliable").transport.kind == "dctcp"
    )
    assert "expected reliable, bounded-loss" in refused("run", "example.toml", "--policy", "none")


# Output that nobody reads


def test_refusals_are_printed_as_json():
    done = run("check", "demo", "--set", "switch.queue=4", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["mistakes"] == [{"path": "switch.queue", "what": "unknown key", "expected": '"queues"', "value": None}]
    assert json.loads(run("trace", "info", "nowhere", "--json").stdout)["error"]["what"] == "no such trace"


def test_closed_pipe_ends_the_command_silently():
    pipe = subprocess.Popen(gradwire_command("schema"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert pipe.stdout is not None and pipe.stderr is not None
    pipe.stdout.read(10)
    pipe.stdout.close()
    assert pipe.stderr.read() == b""
    assert pipe.wait(60) == 0


@pytest.mark.parametrize("command", [("schema",), ("check", "demo"), ("--version",), ("trace", "info", "resnet50")])
def test_full_standard_output_yields_one_message(command: tuple[str, ...]):
    with open("/dev/full", "w") as disk:
        done = subprocess.run(
            gradwire_command(*command), stdout=disk, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "gradwire: standard output: No space left on device\n"


def test_help_text_is_not_truncated():
    shown = " ".join(run("telemetry", "--help").stdout.split())
    assert "as far as [output] recorded them." in shown
