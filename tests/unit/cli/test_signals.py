"""SIGINT and SIGTERM end a command in order, also where SIGINT is ignored; a short selection of the soak of signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gradwire.analysis.comparison.compare import compare
from gradwire.result_store.result import Result
from gradwire.scenarios.interrupt import REPEAT_S

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.soak.signals import one

LOSSY = """\
name = "lossy"
topology = { kind = "star", hosts = 4 }
transport = "dlcp"
switch = { queues = 8, buffer = "64KiB", ecn_threshold = "32KiB", selective_drop = true }

[[job]]
name = "job"
trace = "resnet20"
workers = 3
servers = 1
iterations = 100000
push_bound = 0.1
exchange = { kind = "parameter_server", partition = "16KiB" }
tagging = { magnitude = true }
"""


def python(script: str, ignored: bool = False) -> subprocess.Popen[str]:
    """A script with SIGINT ignored, as in the background of a shell's script, or not."""
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )  # fmt: skip


@pytest.mark.parametrize("twice", [False, True])
def test_sigterm_keeps_a_consistent_result_if_sigint_is_ignored(own_directory: Path, twice: bool):
    """A second SIGTERM, as from `timeout`, changes nothing; losses are counted consistently."""
    Path("lossy.toml").write_text(LOSSY)
    script = """
        import sys
        from gradwire.cli import main
        sys.argv = ["gradwire", "run", "lossy.toml", "--no-fast-forward", "--out", "out"]
        main()
    """
    process = python(script, ignored=True)
    assert process.stderr is not None
    for line in process.stderr:
        if " iterations," in line and not line.startswith("lossy base:   0% 0/"):
            break
    process.terminate()
    if twice:
        process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert errors.endswith("gradwire: terminated\n") and "loss bound broken" not in errors
    result = Result.read("out")
    assert result.summary["totals"]["ended_by"] == "interrupt"
    assert result.messages.num_rows and not compare([result]).violations


def test_ignored_sigint_stays_ignored():
    script = """
        import os, signal, time
        from gradwire.cli.terminal import for_people
        @for_people
        def work():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            print("done")
        work()
    """
    process = python(script, ignored=True)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "done\n", "")


def test_interrupt_swallowed_by_a_library_is_raised_at_the_next_step():
    script = """
        import os, signal, time
        from gradwire.cli.terminal import for_people
        from gradwire.scenarios.interrupt import defer_interrupt
        @for_people
        def work():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            except BaseException:
                pass
            with defer_interrupt():
                print("written")
            print("never")
        work()
    """
    process = python(script)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (143, "written\n", "gradwire: terminated\n")


def test_interrupt_converted_by_a_library_still_ends_the_command():
    script = """
        import os, signal, time
        from gradwire.cli.terminal import for_people
        @for_people
        def work():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            except BaseException as error:
                raise ValueError("SchemaError: KeyboardInterrupt") from None
        work()
    """
    process = python(script)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (143, "", "gradwire: terminated\n")


def test_sigterm_during_an_import_is_deferred(tmp_path: Path):
    """The module is complete when the interrupt is raised."""
    (tmp_path / "slow.py").write_text(
        "import time, os, signal\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.3)\nwhole = True\n"
    )
    script = f"""
        import sys, time
        sys.path.insert(0, {str(tmp_path)!r})
        from gradwire.cli.terminal import for_people
        @for_people
        def work():
            try:
                import slow
                time.sleep(5)
            finally:
                print(sys.modules["slow"].whole)
        work()
    """
    began = time.monotonic()
    process = python(script)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (143, "True\n", "gradwire: terminated\n")
    assert time.monotonic() - began < 4.5


def test_signals_in_quick_succession_count_as_one_interrupt():
    script = f"""
        import os, signal, time
        from gradwire.cli.terminal import for_people
        @for_people
        def work():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
                print("cleaned up", flush=True)
                time.sleep({REPEAT_S})
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
                print("never")
        work()
    """
    process = python(script)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "cleaned up\n")


def test_signal_in_a_compiling_child_does_not_run_the_parents_cleanup(tmp_path: Path):
    """A signal to the process group between fork and the child's first step must not run the clean-up twice."""
    script = f"""
        import os, signal
        from gradwire.jit import engine_cache
        done = os.path.join({str(tmp_path)!r}, "cleaned")
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        fork = os.fork
        def forked():
            child = fork()
            if not child:
                os.kill(os.getpid(), signal.SIGTERM)
            return child
        os.fork = forked
        work = engine_cache.CompileTask("none", dict, {{}}, lambda: "")
        try:
            child, pipe = engine_cache._begin(work)
            os.waitpid(child, 0)
        finally:
            with open(done, "a") as file:
                file.write("x")
    """
    process = python(script)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / "cleaned").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    "label",
    ["run SIGTERM ignored 3:0", "compile SIGINT usual 3:1", "sweep SIGTERM ignored 3:2", "report SIGTERM usual 3:3"],
)
def test_selected_cases_of_the_signal_soak_pass(label: str):
    assert one(label) in ("ok", "cut")
