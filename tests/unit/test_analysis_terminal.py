"""Progress: on a terminal a bar, elsewhere lines; a word early when work takes long to report anything."""

from __future__ import annotations

import time

import pytest

from analysis import terminal
from analysis.terminal import progress


def test_lines_are_few_and_the_last_one_stands(capsys: pytest.CaptureFixture[str]):
    with progress("work") as show:
        for step in range(1, 101):
            show(step / 100, f"step {step}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("work: 100% step 100, ")


def test_silent_work_is_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.05)
    with progress("work", at_first="warming up") as show:
        time.sleep(0.5)
        show(1.0, "done")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "work:   0% warming up"
    assert lines[1].startswith("work: 100% done, ")


def test_work_that_reports_in_time_is_not_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.3)
    with progress("work", at_first="warming up") as show:
        show(0.5, "half")
        time.sleep(0.6)
    assert "warming" not in capsys.readouterr().err


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.01)
    with progress("work", quiet=True, at_first="warming up") as show:
        show(0.5, "half")
        time.sleep(0.1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_no_last_line_after_an_interrupt(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt), progress("work") as show:
        show(0.5, "half")
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("work", at_first="warming up") as show:
        show(0.5, "half")
    shown = capsys.readouterr().err
    assert "work" in shown and " 50%" in shown and "half" in shown


def test_a_narrow_terminal_shows_the_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    words = "24/60 iterations, 88.3 ms simulated, 1.89 M hops/s, about 7 s left"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for columns, bar in ((90, False), (150, True)):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        with progress("demo") as show:
            show(0.4, words)
        shown = capsys.readouterr().err
        assert words in shown and ("━" in shown) == bar
