"""Commands refuse unwritable output, endless input and impossible numbers with one message.

Everything ends with exit code 2, without a traceback or a hang; nothing is left half-written, and nothing that was
computed gets lost.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from output_cases import SMALL, gradwire_command, run

from gradwire.result_store.result import Result

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
