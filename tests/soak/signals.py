"""Signals at random moments as a source of cases: a command that is ended keeps only what is whole.

A case starts a command in a process of its own, sends it SIGINT or SIGTERM after a random share of the time that it
takes, to it alone or to its process group, with SIGINT ignored (as in the background of a script) or not. Then it
checks the exit status, the messages, every folder that was kept, that no process is left, and in one case of four that
the same command resumes where commands do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from random import Random

from gradwire.analysis.comparison.compare import compare
from gradwire.result_store.result import Result
from gradwire.result_store.training_result import TrainingResult
from gradwire.studies.sweep.outcome import Sweep
from gradwire.traces.trace import load_trace
from tests.soak import Case

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 60.0
"""Seconds in which a command has to end after a signal, on a machine that has other work, too."""
GRACE_S = 3.0
"""Seconds in which its last processes have to be gone."""
LATE = 0.5
"""Exit status 0 is right only if the command had this share of its usual time before the signal."""
WRONG = ("Traceback", "Exception ignored", "loss bound broken", "Error", "leaked")

RUN = """\
name = "small"
topology = { kind = "star", hosts = 6 }
transport = "dlcp"
load_balancing = "ecmp"
switch = { queues = 8, buffer = "128KiB", ecn_threshold = "32KiB", selective_drop = true }

[[job]]
name = "job"
trace = "resnet20"
workers = 5
servers = 1
iterations = 60
push_bound = 0.1
exchange = { kind = "parameter_server", partition = "16KiB" }
tagging = { magnitude = true }

[[policy]]
name = "dlcp"

[[policy]]
name = "dctcp"
[policy.set]
transport = "dctcp"
[policy.set.job]
push_bound = 0.0
"""
SWEEP = """\
name = "small"
scenario = "run.toml"
seeds = 2
measures = ["iteration_mean_ps"]

[[axis]]
key = "job.iterations"
values = [10, 20]
"""


@dataclass(frozen=True)
class Command:
    """A command line, and the check of what it leaves in the folder `out`.

    Attributes
    ----------
    resumes : the same command goes on with what is there.
    """

    words: tuple[str, ...]
    check: Callable[[Path], None]
    resumes: bool = False


def _results(place: Path) -> None:
    """Every Result is readable, keeps its bounds, and counts the same loss everywhere."""
    found = [Result.read(each.parent) for each in sorted(place.rglob("result.json"))]
    assert found, f"no Result in {[each.name for each in place.rglob('*')]}"
    assert not compare(found).violations


def _trainings(place: Path) -> None:
    """What has a summary is a training that can be read, and one with a checkpoint has one."""
    for each in place.rglob("training.json"):
        TrainingResult.read(each.parent)
    for each in place.rglob("checkpoint.pt"):
        TrainingResult.read(each.parent)


def _sweep(place: Path) -> None:
    if (place / "sweep.toml").exists():
        found = Sweep.read(place)
        assert not found.failures, [record.why for _, record in found.failures]


def _trace(place: Path) -> None:
    load_trace(place)


def _page(place: Path) -> None:
    assert place.read_text(encoding="utf-8").rstrip().endswith("</html>")


COMMANDS = {
    "run": Command(("run", "run.toml", "--no-fast-forward", "--out", "out"), _results),
    "compile": Command(("run", "run.toml", "--set", "job.iterations=3", "--out", "out"), _results),
    "compare": Command(("compare", "run.toml", "--out", "out"), _results),
    "apart": Command(("compare", "run.toml", "--jobs", "2", "--out", "out"), _results),
    "sweep": Command(("sweep", "sweep.toml", "--jobs", "2", "--out", "out"), _sweep, resumes=True),
    "train": Command(
        ("train", "train-tiny", "--policy", "dlcp", "--set", "training.epochs=1", "--set", "training.score_every=3",
         "--set", "training.samples=500", "--out", "out"), _trainings, resumes=True),
    "report": Command(("report", "whole", "--out", "out"), _page),
    "capture": Command(
        ("capture", "--model", "resnet20", "--data", "synthetic", "--batch", "2", "--threads", "1", "--early", "3", "--late", "9",
         "--overhead-pairs", "2", "--out", "out"), _trace),
    "emulate": Command(("emulate", "testbed", "--policy", "dlcp", "--out", "out"), _results),
}  # fmt: skip
SKIPPED = {"emulate"}
"""Needs a kernel with what the testbed needs; one case by its label tries it."""
SETTINGS = ((signal.SIGTERM, True), (signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True))


def cases(seed: int) -> Iterator[Case]:
    """Every command under every setting in turn, at random moments."""
    kinds = [name for name in COMMANDS if name not in SKIPPED]
    for number in count():
        for name in kinds:
            sent, ignored = SETTINGS[number % len(SETTINGS)]
            label = f"{name} {sent.name} {'ignored' if ignored else 'usual'} {seed}:{number}"
            yield f"signals {label}", partial(one, label)


def one(label: str) -> str:
    """Carry out the case of a label, "COMMAND SIGNAL ignored|usual SEED:NUMBER"."""
    name, sent, disposition, _ = label.split()
    draw = Random(f"signals {label}")
    with tempfile.TemporaryDirectory(prefix="gradwire-signals-") as folder:
        trial = Trial(name, Path(folder), ignored=disposition == "ignored")
        moment, group = draw.random() * 1.1 * duration(name), draw.random() < 0.3
        return trial.signalled(getattr(signal, sent), moment, group, again=draw.random() < 0.25)


@cache
def duration(name: str) -> float:
    """Seconds that a command takes when nobody signals it."""
    with tempfile.TemporaryDirectory(prefix="gradwire-signals-") as folder:
        trial = Trial(name, Path(folder), ignored=False)
        if name != "compile":
            trial.run()  # compiles what it needs
            trial.remove_out()
        began = time.monotonic()
        status, said = trial.run()
        assert status == 0, said
        COMMANDS[name].check(trial.place / "out")
        return time.monotonic() - began


@cache
def inputs() -> Path:
    """A folder with what the commands read, and a cache of engines. It stays as long as this process."""
    _kept.append(tempfile.TemporaryDirectory(prefix="gradwire-signals-in-"))
    place = Path(_kept[-1].name)
    (place / "run.toml").write_text(RUN)
    (place / "sweep.toml").write_text(SWEEP)
    (place / "text.txt").write_text("In the beginning was the word, and it was sent again. " * 200)
    (place / "cache").mkdir()
    done = subprocess.run(
        _words(("compare", "run.toml", "--set", "job.iterations=2", "--out", "whole")), cwd=place, check=False, capture_output=True,
        env=os.environ | {"GRADWIRE_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)}, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _words(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "gradwire", *arguments]


class Trial:
    """A command in a folder and a session of its own."""

    def __init__(self, name: str, place: Path, ignored: bool) -> None:
        self._name, self.command, self.place, self.ignored = name, COMMANDS[name], place, ignored
        for each in ("run.toml", "sweep.toml", "text.txt"):
            shutil.copy(inputs() / each, place / each)
        (place / "whole").symlink_to(inputs() / "whole")
        (place / "tmp").mkdir()
        kept = place / "cache" if name == "compile" else inputs() / "cache"
        self._environment = os.environ | {
            "GRADWIRE_CACHE": str(kept), "PYTHONPATH": str(ROOT), "TMPDIR": str(place / "tmp")
        }  # fmt: skip

    def start(self) -> subprocess.Popen[str]:
        handler = signal.SIG_IGN if self.ignored else signal.SIG_DFL

        def disposition() -> None:
            signal.signal(signal.SIGINT, handler)

        (self.place / "said").unlink(missing_ok=True)
        with (self.place / "said").open("w") as said:
            return subprocess.Popen(
                _words(self.command.words), cwd=self.place, env=self._environment, stdin=subprocess.DEVNULL, stdout=said,
                stderr=said, text=True, start_new_session=True, preexec_fn=disposition,
            )  # fmt: skip

    def run(self) -> tuple[int, str]:
        """The command without a signal: exit status and what it has printed."""
        return self._end(self.start())

    def _end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            status = process.wait(ANSWER_S + 60)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return status, (self.place / "said").read_text()

    def signalled(self, sent: signal.Signals, moment: float, group: bool, again: bool) -> str:
        """The command with a signal after `moment` seconds; AssertionError for anything that is wrong."""
        began = time.monotonic()
        process = self.start()
        time.sleep(max(0.0, began + moment - time.monotonic()))
        had_ended = process.poll() is not None
        if not had_ended:
            (os.killpg if group else os.kill)(process.pid, sent)
        asked = time.monotonic()
        status, said = self._end(process)
        where = f"{' '.join(self.command.words)}: {sent.name} after {moment:.2f} s: status {status}:\n{said}"
        heard = not (had_ended or (sent == signal.SIGINT and self.ignored))
        ended = 128 - status if status < 0 else status
        late = moment > LATE * duration(self._name)
        if sent == signal.SIGINT and _is_interpreters(said):
            assert not (self.place / "out").exists(), where
            return "cut"
        assert ended == 0 if not heard else ended == 128 + sent or (ended == 0 and late), where
        assert not heard or time.monotonic() - asked < ANSWER_S, f"took {time.monotonic() - asked:.0f} s: {where}"
        assert not [word for word in WRONG if word in said], where
        self._check_rest(process.pid, killed=status < 0, where=where)
        if (self.place / "out").exists():
            self.command.check(self.place / "out")
        else:
            assert ended != 0, where
        if again and self.command.resumes:
            status, said = self.run()
            assert status == 0, f"{where}\nresumed: {said}"
            self.command.check(self.place / "out")
        return "ok" if ended == 0 else "cut"

    def _check_rest(self, session: int, killed: bool, where: str) -> None:
        """No process of the session is left, and no folder that is half written."""
        until = time.monotonic() + GRACE_S
        while processes := _processes(session):
            assert time.monotonic() < until, f"left: {processes}: {where}"
            time.sleep(0.05)
        if killed:  # by the system, before Python could answer
            return
        partial = [each.name for each in self.place.iterdir() if each.name.startswith(".")]
        partial += [each.name for each in (self.place / "tmp").iterdir() if each.name.startswith("gradwire")]
        assert not partial, f"left {partial}: {where}"

    def remove_out(self) -> None:
        for each in self.place.glob("out*"):
            each.unlink() if each.is_file() else shutil.rmtree(each)


def _is_interpreters(said: str) -> bool:
    """Return True if Python was interrupted before any code of gradwire ran, which no program can answer."""
    starts = ("Traceback", "Fatal Python error: init_import_site", "Error in sitecustomize", "Could not import runpy")
    begun = said.startswith(starts)
    return begun and "KeyboardInterrupt" in said and "/gradwire/" not in said


def _processes(session: int) -> list[str]:
    """Processes of a session that have not ended: number and name."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                name, _, rest = (each / "stat").read_text().rpartition(")")
            except OSError:
                continue
            state, _, _, its, *_ = rest.split()
            if int(its) == session and state != "Z":
                found.append(name)
    return found
