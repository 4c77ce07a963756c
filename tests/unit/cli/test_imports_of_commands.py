"""Which commands import code that a scenario or a Result names. SECURITY.md has the same table.

The code is a trap: a module that leaves a marker and stops. So a command that imports it is seen, even if it refuses.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
from pathlib import Path

import pytest
from output_cases import ROOT, SMALL, gradwire_command, run

from gradwire.cli import app
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.loading.trust import VARIABLE, TrustError, enclosing_result, trust_scope
from gradwire.scenarios.loading.user_classes import load_user_class

TRAP = """\
from pathlib import Path
import helper
Path({marker!r}).touch()
raise RuntimeError("the trap has shut")
"""
TRAPPED = SMALL.replace('transport = "dctcp"', 'transport = "evil:Transport"')
JOB = """
[[job]]
name = "train"
trace = "resnet20"
workers = 2
servers = 1
exchange = { kind = "parameter_server" }
scheduler = { kind = "bytescheduler" }
"""
TRAPPED_JOB = TRAPPED[: TRAPPED.index("[[traffic]]")] + JOB
TRAINING = (
    SMALL[: SMALL.index("[[traffic]]")]
    + JOB
    + """
[training]
model = "evil:model"
data = "evil:data"
batch = 4
epochs = 1
"""
)
SWEEP = """
name = "swept"
scenario = "{scenario}"
measures = ["flow_mean_ps"]
seeds = 1
[[axis]]
key = "switch.buffer"
values = ["128KiB"]
"""

SCENARIO, LEARNER, TUNED, SWEPT = "{folder}/scenario.toml", "{folder}/learner.toml", "{folder}/tuned.toml", "swept.toml"
IMPORTING = {
    "check": ("check", SCENARIO),
    "run": ("run", SCENARIO),
    "run RESULT": ("run", "{folder}"),
    "compare": ("compare", SCENARIO),
    "train": ("train", LEARNER),
    "sweep": ("sweep", SWEPT),
    "sweep --dry-run": ("sweep", SWEPT, "--dry-run"),
    "recommend": ("recommend", SCENARIO),
    "tune": ("tune", TUNED, "--trials", "1"),
    "probe": ("probe", SCENARIO),
    "emulate": ("emulate", SCENARIO),
    "fidelity": ("fidelity", SCENARIO),
    "exec": ("exec", SCENARIO, "--", "true"),
}
"""Commands that import what a scenario names, by what they are called in the table of SECURITY.md."""
READING = {
    "compare RESULT": ("compare", "{folder}", "--out", "compared"),
    "report": ("report", "{folder}", "--out", "page.html"),
    "timeline": ("timeline", "{folder}", "--out", "timeline.json"),
    "tensors": ("tensors", "{folder}"),
    "telemetry": ("telemetry", "{folder}"),
    "fidelity --from": ("fidelity", "--from", "{folder}"),
}
"""Commands that read a Result, and import nothing that it names."""
NEITHER = {
    "demo", "schema", "list", "new", "predictor", "reproduce", "capture", "cache", "bench", "trace", "diagnose", "log",
    "collective",
}  # fmt: skip
"""Commands that take neither a scenario nor a Result, or no code of one (diagnose)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A Result of a run, with a trap in it that its scenario names."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "small.toml").write_text(SMALL)
    done = subprocess.run(
        gradwire_command("run", "small.toml", "--out", "result"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder / "result"


@pytest.fixture
def marker(own_directory) -> Path:
    return own_directory / "marker"


def lay_traps(folder: Path, marker: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "evil.py").write_text(TRAP.format(marker=str(marker)))
    (folder / "helper.py").write_text("")
    (folder / "scenario.toml").write_text(TRAPPED)
    (folder / "learner.toml").write_text(TRAINING)
    (folder / "tuned.toml").write_text(TRAPPED_JOB)
    Path("swept.toml").write_text(SWEEP.format(scenario=f"{folder}/scenario.toml"))


@pytest.fixture
def result(made, own_directory, marker) -> Path:
    """A copy of that Result."""
    folder = shutil.copytree(made, own_directory / "result")
    lay_traps(folder, marker)
    return folder


def done_by(command: tuple[str, ...], folder: Path, *more: str):
    words = [word.format(folder=folder) for word in command]
    words[1:1] = more
    return run(*words, timeout=60)


def test_security_page_lists_every_command():
    names = {each.name for each in (*app.registered_commands, *app.registered_groups)}
    listed = {words[0] for words in (*IMPORTING.values(), *READING.values())}
    assert listed | NEITHER == names
    assert all(not _takes_a_scenario(name) for name in NEITHER)
    table = (ROOT / "SECURITY.md").read_text()
    for name in (*IMPORTING, *READING):
        assert f"`gradwire {name}" in table, name


def _takes_a_scenario(name: str) -> bool:
    """Return True if a command has an argument of that kind."""
    from typer.main import get_command

    group = get_command(app)
    commands = group.commands[name]  # type: ignore[attr-defined]
    inner = getattr(commands, "commands", {}).values()
    taken = {parameter.name for each in (commands, *inner) for parameter in each.params}
    return bool(taken & {"scenario", "result", "results"})


@pytest.mark.parametrize("name", [name for name in IMPORTING if name != "run RESULT"])
def test_commands_import_the_code_named_by_a_scenario(marker, own_directory, name):
    lay_traps(own_directory / "mine", marker)
    done = done_by(IMPORTING[name], own_directory / "mine")
    assert marker.exists() and done.returncode != 0
    assert "the trap has shut" in done.stdout + done.stderr


@pytest.mark.parametrize("name", READING)
def test_commands_that_read_a_result_import_no_code(result, marker, name):
    done = done_by(READING[name], result)
    assert not marker.exists()
    assert done.returncode == (2 if name == "fidelity --from" else 0), done.stderr  # the run is of no program
    assert "evil" not in done.stderr


@pytest.mark.parametrize("name", IMPORTING)
def test_code_in_a_result_requires_trust(result, marker, name):
    done = done_by(IMPORTING[name], result)
    assert not marker.exists()
    assert done.returncode == (1 if name == "probe" else 2), done.stderr
    said = " ".join((done.stdout + done.stderr).replace("\n", "").split())
    for word in (f"{result}", "holds code that would be imported: evil.py, helper.py", "--trust"):
        assert word.replace(" ", "") in said.replace(" ", "")
    assert "Traceback" not in said
    done = done_by(IMPORTING[name], result, "--trust")
    assert marker.exists() and "the trap has shut" in done.stdout + done.stderr


def test_json_error_names_untrusted_code(result, marker):
    done = run("check", str(result / "scenario.toml"), "--json")
    assert done.returncode == 2 and "evil.py" in json.loads(done.stdout)["error"]["what"]
    assert not marker.exists()


@pytest.mark.parametrize("answer, is_run", [("y\n", True), ("n\n", False), ("\n", False), ("\x04", False)])
def test_terminal_asks_before_importing_untrusted_code(result, marker, answer, is_run):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        gradwire_command("run", str(result)), stdin=follower, stdout=follower, stderr=follower, env={**os.environ}
    )
    os.close(follower)
    said = b""
    while b"[y/N]" not in said:
        assert select.select([leader], [], [], 30)[0], said
        said += os.read(leader, 4096)
    assert not marker.exists() and b"evil.py, helper.py" in said.replace(b"\r\n", b"")
    os.write(leader, answer.encode())
    try:
        while select.select([leader], [], [], 30)[0] and os.read(leader, 4096):
            pass
    except OSError:  # the end of a terminal
        pass
    assert process.wait(60) == 2
    os.close(leader)
    assert marker.exists() == is_run


def test_result_with_modules_outside_its_folder_is_refused(result, marker, own_directory):
    """gradwire writes absolute paths, but an archive could contain both the Result and the folder."""
    lay_traps(own_directory / "beside", marker)
    (result / "scenario.toml").write_text('modules = "../beside"\n' + TRAPPED)
    done = run("run", str(result), "--trust")
    assert done.returncode == 2 and "outside of the Result" in done.stderr and not marker.exists()


def test_symbolic_links_in_and_to_a_result_require_trust(result, marker, own_directory):
    lay_traps(own_directory / "mine", marker)
    (result / "evil.py").unlink()
    (result / "evil.py").symlink_to(own_directory / "mine" / "evil.py")
    assert run("run", str(result)).returncode == 2 and not marker.exists()
    (own_directory / "link").symlink_to(result)
    assert run("run", "link").returncode == 2 and not marker.exists()


def test_modules_in_a_comparison_belong_to_the_comparison(result, marker, own_directory):
    outer = own_directory / "outer"
    shutil.copytree(result, outer / "results" / "one")
    (outer / "comparison.json").write_text("{}")
    assert enclosing_result(outer / "results" / "one" / "evil.py") == outer
    (outer / "evil.py").write_text(TRAP.format(marker=str(marker)))
    (outer / "helper.py").write_text("")
    assert enclosing_result(outer / "evil.py") == outer
    assert enclosing_result(own_directory / "evil.py") is None


def test_api_trusts_results_by_environment_variable(result, marker, monkeypatch):
    scenario = load_scenario(result / "scenario.toml")
    with pytest.raises(TrustError, match=VARIABLE):
        load_user_class("evil:Transport", scenario.folder, "transport.kind")
    monkeypatch.setenv(VARIABLE, f"/elsewhere:{result.parent}")
    with pytest.raises(ScenarioError, match="the trap has shut"):
        load_user_class("evil:Transport", scenario.folder, "transport.kind")
    assert marker.exists()


def test_trust_ends_with_the_command(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with trust_scope(True):
        assert os.environ[VARIABLE] == "*"
    assert VARIABLE not in os.environ
