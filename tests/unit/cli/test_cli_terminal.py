"""Progress: on a terminal a bar, elsewhere lines; a word early when work takes long to report anything."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gradwire.cli import terminal
from gradwire.cli.terminal import progress


def test_progress_without_terminal_prints_the_last_line(capsys: pytest.CaptureFixture[str]):
    with progress("work") as show:
        for step in range(1, 101):
            show(step / 100, f"step {step}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("work: 100% step 100, ")


def test_progress_prints_the_initial_message_for_silent_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.05)
    with progress("work", at_first="warming up") as show:
        time.sleep(0.5)
        show(1.0, "done")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "work:   0% warming up"
    assert lines[1].startswith("work: 100% done, ")


def test_progress_omits_the_initial_message_after_an_early_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.3)
    with progress("work", at_first="warming up") as show:
        show(0.5, "half")
        time.sleep(0.6)
    assert "warming" not in capsys.readouterr().err


def test_quiet_progress_prints_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.01)
    with progress("work", quiet=True, at_first="warming up") as show:
        show(0.5, "half")
        time.sleep(0.1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_prints_no_last_line_after_an_interrupt(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt), progress("work") as show:
        show(0.5, "half")
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_progress_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("work", at_first="warming up") as show:
        show(0.5, "half")
    shown = capsys.readouterr().err
    assert "work" in shown and " 50%" in shown and "half" in shown


WORDS = "3/5 iterations, about 7 s left, 88.3 ms simulated, 1.89 M hops/s"


@pytest.mark.parametrize(
    ("width", "name", "shown"),
    [
        (150, "demo dlcp", "demo dlcp BAR 40% 3/5 iterations, about 7 s left, 88.3 ms simulated, 1.89 M hops/s 0:00:"),
        (90, "demo dlcp", "demo dlcp  40% 3/5 iterations, about 7 s left, 88.3 ms simulated, 1.89 M hops/s 0:00:"),
        (80, "demo dlcp-and-priority", "demo dlcp-and-priority  40% 3/5 iterations, about 7 s left 0:00:"),
        (80, "a-scenario-with-a-long-name and-its-policy, on real sockets",
         "a-scenario-with-…on real sockets  40% 3/5 iterations, about 7 s left 0:00:"),
        (60, "demo dctcp-priority", "demo dctcp-priority  40% 3/5 iterations 0:00:"),
        (40, "demo dctcp-priority", "demo dct…riority  40% 3/5 itera… 0:00:"),
        (32, "demo dctcp-priority", "demo d…ority  40% 3/5 i… 0:00:"),
    ],
)  # fmt: skip
def test_progress_bar_is_shortened_to_the_terminal_width(
    width: int, name: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    with progress(name) as show:
        show(0.4, WORDS)
    written = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "\n", capsys.readouterr().err).replace("\r", "\n")
    lines = [re.sub("[━╸╺]+ *", "BAR ", line).rstrip() for line in written.splitlines() if "%" in line]
    assert lines[-1].startswith(shown)
    assert re.fullmatch(r"0:00:\d\d", "0:00:" + lines[-1][len(shown) :])
    assert max(map(len, written.splitlines())) <= width


@pytest.mark.parametrize("interrupts", [signal.SIG_DFL, signal.SIG_IGN])
def test_command_cleans_up_after_sigterm(interrupts: signal.Handlers):
    """Commands started in the background of a script ignore SIGINT but not SIGTERM."""
    script = """
        import time
        from gradwire.cli.terminal import for_people
        @for_people
        def work():
            try:
                print("begun", flush=True)
                time.sleep(60)
            finally:
                print("kept", flush=True)
        work()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, interrupts),
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.terminate()
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (143, "kept\n", "gradwire: terminated\n")
