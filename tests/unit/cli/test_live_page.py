"""The page of a running command: its states, its place, and what it says by itself when nobody writes it any more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.cli.live_page import MARK, LivePage
from gradwire.cli.options import LiveCommand
from tests.support.browser import Browser, browser_program
from tests.support.sweep_cases import sweep_text

SWEEP = [sys.executable, "-m", "gradwire", "sweep", "long.toml", "--jobs", "1"]


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(sweep_text())


def state_of(path: str | Path) -> str:
    found = re.search(r'data-state="(\w+)" data-written', Path(path).read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def ends(*words: str) -> int:
    return CliRunner().invoke(app, list(words)).exit_code


def test_a_page_tells_how_its_command_ended() -> None:
    """A sweep writes into its folder; failed points show as the command's exit status, and the page links a report."""
    assert ends("sweep", "small.toml", "--out", "out", "--live") == 0
    page = Path("out/live.html").read_text(encoding="utf-8")
    assert state_of("out/live.html") == "finished" and "8/8 runs" in page
    points = page.partition('"title":"slowdown_p99"')[2].partition("</script>")[0]
    assert len(re.findall(r"\[\d,[\d.]+\]", points)) == 8
    assert ends("run", "demo", "--policy", "nope", "--live", "p.html") == 2
    assert state_of("p.html") == "failed" and "no policy &quot;nope&quot;" in Path("p.html").read_text(encoding="utf-8")
    assert not list(Path().glob("**/.*partial"))


def test_a_new_folder_has_its_page_beside_it() -> None:
    """A folder that must be new is put in place as a whole; what --force replaces is no page."""
    assert ends("compare", "small.toml", "--out", "cmp", "--live") == 2  # a sweep, not a scenario
    assert state_of("cmp-live.html") == "failed" and not Path("cmp").exists()
    assert ends("run", "demo", "--set", "job.iterations=1", "--out", "one", "--live") == 0
    assert state_of("one-live.html") == "finished" and not Path("one/live.html").exists()
    assert "iteration time, ms" in Path("one-live.html").read_text(encoding="utf-8")
    Path("one/report.md").write_text("")
    page = LivePage(Path("again.html"), Path("one"))
    page.start()
    page.end("finished", "")
    assert '<a href="one/report.md">' in Path("again.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "place, words",
    [
        ("mine.html", "exists and is no live page"),
        ("none/p.html", "in a folder that exists"),
        ("folder.html", "is no live page"),
        ("link.html", "is no live page"),
        ("mine.html/p.html", "parent that is not a folder"),
        (f"{'a' * 300}.html", "the name is too long"),
    ],
)
def test_other_files_are_kept(place: str, words: str) -> None:
    Path("mine.html").write_text("mine")
    Path("folder.html").mkdir()
    Path("link.html").symlink_to("nowhere.html")
    ended = CliRunner().invoke(app, ["sweep", "small.toml", "--out", "out", "--live", place])
    assert ended.exit_code == 2 and words in ended.stderr
    assert not Path("out").exists() and Path("mine.html").read_text() == "mine"


def test_a_file_is_optional() -> None:
    """Only a word that ends in .html is the file; words of `exec` after two dashes are left alone."""
    seen = []

    class Recording(LiveCommand):
        def make_parser(self, ctx):  # type: ignore[no-untyped-def]
            parser = super().make_parser(ctx)
            parser.parse_args = lambda args: seen.append(args) or ({}, [], [])  # type: ignore[method-assign]
            return parser

    for words in (
        ["--live", "demo"],
        ["demo", "--live"],
        ["--live", "a.html", "demo"],
        ["--live=b", "demo"],
        ["demo", "--", "--live"],
    ):
        command = Recording("x", callback=lambda: None)
        command.parse_args(command.context_class(command), words)
    assert seen == [
        ["--live=", "demo"],
        ["demo", "--live="],
        ["--live", "a.html", "demo"],
        ["--live=b", "demo"],
        ["demo", "--", "--live"],
    ]


def test_a_signal_is_told_and_a_kill_is_noticed(tmp_path: Path) -> None:
    """SIGTERM ends with the state interrupted. After SIGKILL the file still says running, and a browser corrects it."""
    Path("long.toml").write_text(sweep_text(seeds=500))
    for number, state, code in ((signal.SIGTERM, "interrupted", 143), (signal.SIGKILL, "running", -9)):
        page = tmp_path / f"{state}.html"
        process = subprocess.Popen(
            [*SWEEP, "--out", state, "--live", str(page)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not (page.exists() and "/2000 runs" in page.read_text(encoding="utf-8")):
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == code
        assert state_of(page) == state


def test_interrupt_that_a_library_converted_is_told() -> None:
    """A compiled library raises its own exception for KeyboardInterrupt; page and terminal still say interrupted."""
    script = """
        import os, signal, sys, time
        from gradwire.cli.terminal import for_people
        sys.argv = ["gradwire", "work"]
        @for_people
        def work(live):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
            except KeyboardInterrupt:
                error = ValueError("converted")
                error.add_note("3 runs done")
                raise error
        work(live="p.html")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "live page: p.html\ngradwire: interrupted: 3 runs done\n")
    assert state_of("p.html") == "interrupted" and "converted" not in Path("p.html").read_text(encoding="utf-8")


def test_a_finished_page_is_full(tmp_path: Path) -> None:
    """A resumed command whose work is all done reports no more than its title."""
    page = LivePage(tmp_path / "live.html", None)
    page.report("recommend", 0.0, "")
    (tmp_path / "live.txt").touch()
    page.start()
    page.end("finished", "")
    assert '<progress max="1" value="1.0000"' in page.path.read_text(encoding="utf-8")
    assert [share for _, share in page._series["progress"]["recommend"]] == [0.0, 1.0]


@pytest.mark.skipif(browser_program() is None, reason="needs a browser")
def test_a_browser_sees_silence_and_reloads(tmp_path: Path) -> None:
    """A page with news reloads and is silent about silence; one that is old says since when, and so does one that ages."""
    page = LivePage(tmp_path / "live.html", None)
    page.report("train", 0.4, "step 3, about 5 s left")
    for step in range(1000):
        page.value("loss", "a run", step, 1 / (step + 1))
    page._write("running", "")
    program = browser_program()
    assert program is not None
    with Browser(program) as browser:
        for wide in (400, 800, 1280):
            browser.open(page.path, wide)
            assert browser.run("document.documentElement.scrollWidth <= innerWidth")
            assert browser.run("document.querySelectorAll('.chart svg').length") == 2
        assert browser.run("document.getElementById('silent').hidden")
        page.report("train", 0.9, "step 9")
        page._write("running", "")
        while "90%" not in browser.run("document.querySelector('.tiles')?.textContent ?? ''"):
            time.sleep(0.1)  # until it has reloaded by itself
        text = page.path.read_text(encoding="utf-8")
        old = re.sub(r'data-written="\d+"', f'data-written="{(time.time() - 3600) * 1000:.0f}"', text)
        page.path.write_text(old, encoding="utf-8")
        browser.open(page.path)
        hour = time.strftime("%H:%M", time.localtime(time.time() - 3600))
        assert browser.run("document.getElementById('silent').textContent").startswith(f"No update since {hour}")
        assert not browser.run("document.getElementById('silent').hidden")
        page._write("finished", "")
        browser.open(page.path)
        assert browser.run("document.getElementById('silent').hidden")
        assert browser.complaints == [] and set(browser.requests) == {page.path.as_uri()}


def test_points_are_thinned_and_writing_fails_quietly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = LivePage(tmp_path / "gone" / "live.html", None)
    for step in range(100_000):
        page.value("loss", "a run", step, float(step))
    points = page._series["loss"]["a run"]
    assert len(points) <= 120 and points[0][0] == 0 and points[-1][0] == 99_999
    page._write("running", "")  # no folder yet
    assert not page.path.exists()
    page.path.parent.mkdir()
    page._write("running", "")
    assert not page.path.exists()  # the command has not claimed it yet
    (tmp_path / "gone" / "sweep.txt").touch()
    (tmp_path / "gone" / ".live.html.partial").mkdir()
    page._write("running", "")
    page._write("finished", "")
    assert capsys.readouterr().err.count("the live page cannot be written") == 1
    os.rmdir(tmp_path / "gone" / ".live.html.partial")
    page = LivePage(tmp_path / "gone" / "live.html", None)
    page._write("finished", "")
    assert MARK in page.path.read_text(encoding="utf-8")
