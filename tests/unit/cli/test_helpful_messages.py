"""Messages that say what to do next: names that are nearly right, the other command, and folders to be replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from output_cases import SMALL, gradwire_command, run

import gradwire
from gradwire.result_store.folders.replacement import claim_output
from gradwire.scenarios import advice
from gradwire.scenarios.errors import MissingExtraError, ResultError, ScenarioError
from gradwire.scenarios.loading.load import as_override_list, load_scenario


@pytest.mark.parametrize("command, said", [
    (("check", "demoo"), "did you mean 'demo'"), (("run", "demoo"), "did you mean 'demo'"),
    (("compare", "incats"), "did you mean 'incast'"), (("train", "train-tyni"), "did you mean 'train-tiny'"),
    (("tune", "shcedulers"), "did you mean 'schedulers'"), (("probe", "testbde"), "did you mean 'testbed'"),
    (("emulate", "testbde"), "did you mean 'testbed'"), (("fidelity", "testbde"), "did you mean 'testbed'"),
    (("exec", "four-host", "--", "true"), "did you mean 'four-hosts'"), (("sweep", "tail-laod"), "did you mean 'tail-load'"),
    (("new", "load-balancer", "mine.py"), "did you mean 'load_balancer'"),
    (("compare", "tail-load"), "is a sweep, not a scenario; expected gradwire sweep tail-load"),
    (("sweep", "demo"), "is a scenario, not a sweep; expected gradwire compare demo"),
    (("check", "demo", "--set", "topology.kind=fat_tree"),
     "--set 'topology={ kind = \"fat_tree\", k = ... }' sets the whole table"),
    (("trace", "info", "."), "not a trace: no manifest.json"),
])  # fmt: skip
def test_error_messages_suggest_names_and_commands(own_directory, command, said):
    done = run(*command)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert list(own_directory.iterdir()) == []


@pytest.mark.parametrize("words", ["recommend", "log --log tensorboard", "report", "timeline", "diagnose"])
def test_names_that_are_too_long_are_refused(own_directory, words):
    done = run(*words.split(), "a" * 300)
    assert done.returncode == 2 and "the name is too long; expected at most 255 bytes" in done.stderr


def test_run_of_a_sweep_file_suggests_the_sweep_command(own_directory):
    Path("mine.toml").write_text('name = "x"\nscenario = "demo"\nmeasures = ["flow_mean_ps"]\n')
    assert "is a sweep, not a scenario; expected gradwire sweep mine.toml" in run("run", "mine.toml").stderr


def test_invalid_scenario_is_refused_before_compiling(own_directory, tmp_path, monkeypatch):
    """The scenario's link holds more packets than the engine counts, and no other test compiles it."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    Path("far.toml").write_text(SMALL + '[link]\nrate = "100Tbps"\nlatency = "10s"\n[host]\nsoftware_latency = "11s"\n')
    done = subprocess.run(gradwire_command("run", "far.toml"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "holds more than 17 million" in done.stderr and "compiling" not in done.stderr
    assert not list((tmp_path / "cache").glob("engines/*/about.json"))


@pytest.mark.parametrize("is_checkout, kernel, extra", [
    (True, "make uml", "pip install -e '.[emu]' (in the folder of gradwire)"),
    (False, "python -m gradwire.emu.virtual_time.kernel_build", "pip install 'gradwire[emu]'"),
])  # fmt: skip
def test_install_advice_depends_on_checkout_or_package(monkeypatch, is_checkout, kernel, extra):
    assert advice.is_checkout()
    monkeypatch.setattr(advice, "is_checkout", lambda: is_checkout)
    assert advice.build_kernel() == kernel and advice.install("emu") == extra
    assert extra in str(MissingExtraError("scapy", "emu"))


def test_overrides_can_be_a_mapping():
    given = {
        "job.workers": 4,
        "link.rate": "10Gbps",
        "switch.selective_drop": True,
        "topology": {"kind": "star", "hosts": 9},
    }
    listed = [
        "job.workers=4",
        "link.rate=10Gbps",
        "switch.selective_drop=true",
        'topology={ kind = "star", hosts = 9 }',
    ]
    assert load_scenario("demo", set=given) == load_scenario("demo", set=listed)
    with pytest.raises(ScenarioError, match="TOML has no object"):
        as_override_list({"a": object()}, "compare(set)")
    with pytest.raises(ScenarioError, match=r"job\[0\].workerz: unknown key"):
        gradwire.compare("demo", set={"job.workerz": 4})


@pytest.mark.usefixtures("own_directory")
class TestForce:
    """--force replaces results of gradwire, and nothing else."""

    def test_force_replaces_results(self):
        Path("small.toml").write_text(SMALL)
        assert run("run", "small.toml", "--out", "out").returncode == 0
        Path("out/iteration_time.pdf").touch()
        assert run("run", "small.toml", "--out", "out").returncode == 2
        done = run("run", "small.toml", "--out", "out", "--force")
        assert done.returncode == 0, done.stderr
        assert not Path("out/iteration_time.pdf").exists() and Path("out/result.json").exists()
        assert sorted(path.name for path in Path().iterdir()) == ["out", "small.toml"]
        assert run("run", "small.toml", "--out", "new", "--force").returncode == 0, "there is nothing to replace"

    @pytest.mark.parametrize(
        "place", ["mine.tex", "mine/x", "plots.png", "results/mine.txt", "results/dctcp/mine", "results/mine/x"]
    )
    def test_force_refuses_folders_with_user_files_beside_results(self, place):
        """A comparison is replaced if every file is known, and refused with one more file."""
        assert run("compare", "demo", "--set", "job.iterations=1", "--out", "out").returncode == 0
        with claim_output("out", force=True):
            assert not list(Path("out").iterdir()), "every file of it is known"
        Path("out", place).parent.mkdir(exist_ok=True)
        Path("out", place).write_text("mine")
        with (
            pytest.raises(ResultError, match=f"cannot be replaced.*{place.removesuffix('/x')}"),
            claim_output("out", force=True),
        ):
            raise AssertionError
        assert Path("out", place).read_text() == "mine" and Path("out/comparison.json").exists()

    @pytest.mark.parametrize(
        "mark", [None, ("result.json", "{}"), ("result.json", "no JSON"), ("note.json", '{"format": 1}')]
    )
    def test_force_refuses_unrecognised_folders(self, mark):
        Path("small.toml").write_text(SMALL)
        Path("out").mkdir()
        Path("out/mine").touch()
        if mark:
            Path("out", mark[0]).write_text(mark[1])
        done = run("run", "small.toml", "--out", "out", "--force")
        assert done.returncode == 2 and "cannot be replaced (--force)" in done.stderr
        assert Path("out/mine").exists()

    @pytest.mark.parametrize("name", ["scenario.toml", "result.json", "report.html"])
    def test_force_refuses_gradwire_file_names_without_a_result(self, name):
        Path("out").mkdir()
        Path("out", name).write_text("mine")
        with pytest.raises(ResultError, match="cannot be replaced"), claim_output("out", force=True):
            raise AssertionError
        assert Path("out", name).read_text() == "mine"

    def test_force_refuses_the_working_directory(self, monkeypatch):
        Path("out").mkdir()
        Path("out/result.json").write_text('{"format": 1}')
        monkeypatch.chdir("out")
        with pytest.raises(ResultError, match="is the working directory"), claim_output("../out", force=True):
            raise AssertionError
        assert Path("result.json").exists()

    def test_force_refuses_a_symbolic_link(self):
        Path("there").mkdir()
        Path("there/result.json").write_text('{"format": 1}')
        Path("out").symlink_to("there")
        with pytest.raises(ResultError, match="cannot be replaced"), claim_output("out", force=True):
            pass
        assert Path("there/result.json").exists()

    def test_force_restores_old_results_after_an_interrupt(self):
        Path("out").mkdir()
        Path("out/result.json").write_text('{"format": 1}')
        with pytest.raises(KeyboardInterrupt), claim_output("out", force=True):
            raise KeyboardInterrupt
        assert json.loads(Path("out/result.json").read_text()) == {"format": 1}
        assert [path.name for path in Path().iterdir()] == ["out"]


def test_interrupted_sweep_reports_the_number_of_finished_points(own_directory):
    Path("small.toml").write_text(SMALL)
    Path("swept.toml").write_text(
        'name = "swept"\nscenario = "small.toml"\nmeasures = ["flow_mean_ps"]\nseeds = 400\n[set]\nlink = { loss = 0.01 }\n'
    )
    process = subprocess.Popen(
        gradwire_command("sweep", "swept.toml", "--jobs", "1", "--out", "out"), stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while len(list(Path("out").glob("points/*.json"))) < 2 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    done = len([path for path in Path("out/points").glob("*.json") if '"done"' in path.read_text()])
    assert process.returncode == 130 and 2 <= done < 400
    assert f"gradwire: interrupted: {done} of 400 done; the same command resumes\n" in said


def test_nested_tables_of_overrides_are_merged():
    """Nested, with paths as keys, and as texts they mean the same; a table with a kind replaces the whole one."""
    nested = {"job": {"workers": 4, "exchange": {"partition": "32KiB"}}, "link": {"rate": "10Gbps"}}
    listed = ["job.workers=4", 'job.exchange.partition="32KiB"', 'link.rate="10Gbps"']
    assert as_override_list(nested, "here") == listed
    changed = load_scenario("demo", set=nested)
    assert changed == load_scenario("demo", set=listed)
    assert changed.link.latency == load_scenario("demo").link.latency  # the other keys stay
    star = {"topology": {"kind": "star", "hosts": 9}}
    assert as_override_list(star, "here") == ['topology={kind = "star", hosts = 9}']
    assert load_scenario("demo", set={"job": {}, "traffic": []}) is not None
    numbers = {"job": {"workers": np.int64(4), "jitter": np.float32(0.5)}}
    assert as_override_list(numbers, "here") == ["job.workers=4", "job.jitter=0.5"]
    endless: dict[str, object] = {}
    endless["job"] = endless
    for wrong, words in (
        (endless, "too deeply nested"),
        ({"job": {3: 4}}, "has the key 3"),
        ({4: 1}, "has the key 4"),
        ({"job": {"workers": None}}, "job.workers: TOML has no NoneType"),
        ({"job": {"wrokers": 2}}, r"job\[0\].wrokers: unknown key"),
        ({"no..such": {"key": 1}}, "is not an override"),
    ):
        with pytest.raises(ScenarioError, match=words):
            load_scenario("demo", set=wrong)
