"""Runs commands on damaged Results, training runs and sweeps; every command shows or refuses what it reads.

Whole folders are changed by `tests.soak.damage`: columns of Parquet, values of JSON and TOML, and bytes. Commands run in
this process, through the command line's own door, and may end with 0, 1 or 2.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from random import Random

from typer.testing import CliRunner

import gradwire.traces.storage.memory_limits
from gradwire.cli import app
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.simulate import simulate
from tests.soak.damage import by_bytes, by_json, by_lines, by_numbers, by_table
from tests.soak.readers import ROOM, scratch

PATIENCE_S = 20
"""Seconds of a processor that a case may take."""
MOST_CHARACTERS = 5_000
"""In a line of a message; 600 of an error and its place, and escapes for those that are no characters."""
JOB = """\
name = "job"
topology = { kind = "star", hosts = 3 }
transport = "dlcp"
switch = { queues = 8, buffer = "64KiB", ecn_threshold = "32KiB", selective_drop = true }
link = { loss = 0.002 }
host = { software_latency = "5us" }
output = { queue_samples = "1ms", delays = true }

[[job]]
name = "job"
trace = "resnet20"
workers = 2
servers = 1
iterations = 2
push_bound = 0.1
exchange = { kind = "parameter_server", partition = "64KiB" }
tagging = { magnitude = true }
"""
FLOWS = """\
name = "flows"
topology = { kind = "star", hosts = 3 }
transport = "dctcp"
switch = { ecn_threshold = "64KiB" }
host = { software_latency = "5us" }
output = { queue_samples = "1us", delays = true, packet_log = true }

[[traffic]]
name = "burst"
kind = "incast"
fan_in = 2
receiver = "h2"
size = "20kB"
"""
TRAINING = """\
name = "tiny"
topology = { kind = "star", hosts = 3 }

[[job]]
name = "job"
trace = "resnet20"
workers = 2
servers = 1
exchange = { kind = "parameter_server" }

[training]
model = "resnet8"
data = "synthetic"
network = "ideal"
size = 16
samples = 40
augment = false
batch = 4
steps = 4
score_every = 2
"""
SWEEP = """\
name = "sizes"
scenario = "flows.toml"
seeds = 2
measures = ["slowdown_mean", "flows"]

[[axis]]
key = "traffic.size"
values = ["10kB", "20kB"]
"""
PAGE = ("report", "{}", "--out", "page.html")
SHOWN = (
    ("compare", "{}"), ("compare", "{}", "whole"), ("compare", "{}", "--breakdown", "--all-metrics"), ("compare", "{}", "--json"),
    ("report", "{}", "--out", "page.html"), ("report", "{}", "whole", "--out", "page.html", "--no-timelines"),
    ("timeline", "{}", "--out", "timeline.json"), ("telemetry", "{}"), ("telemetry", "{}", "--json"),
    ("tensors", "{}"), ("tensors", "{}", "--json"),
)  # fmt: skip
"""Commands that show a folder."""
SHOWN_OF = {
    "result": SHOWN, "training": (PAGE, ("train", "training.toml", "--out", "{}")),
    "sweep": (PAGE, ("sweep", "sweep.toml", "--jobs", "1", "--out", "{}")),
}  # fmt: skip
"""Those of each kind of folder; trainings and sweeps go on with what is there."""


@cache
def whole() -> list[dict[str, bytes]]:
    """Results as their files: one of a job that loses packets, one of flows with everything that can be recorded."""
    found = []
    for text in (JOB, FLOWS):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (Path(folder) / "scenario.toml").write_text(text)
            scenario = load_scenario(Path(folder) / "scenario.toml")
            found.append(files_of(simulate(scenario).write(Path(folder) / "result")))
    return found


@cache
def continued(kind: str) -> dict[str, bytes]:
    """The files of a training or a sweep that is done."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_inputs(Path())
        assert shown(*(word.format("out") for word in SHOWN_OF[kind][1])) == "ok"
        return files_of(Path("out"))


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their path in it."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


def write_inputs(place: Path) -> None:
    """Write what trainings and sweeps read."""
    for name, text in (("training", TRAINING), ("flows", FLOWS), ("sweep", SWEEP)):
        (place / f"{name}.toml").write_text(text)


def cases(seed: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """(label, thunk) without end."""
    for number in itertools.count():
        yield f"results {seed}:{number}", partial(one, f"{seed}:{number}")


def damaged(files: dict[str, bytes], rng: Random) -> dict[str, bytes]:
    """The files of a folder, of which one or two are changed or missing."""
    files = dict(files)
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(list(files))
        if name.endswith(".parquet"):
            files[name] = rng.choice((by_table, by_table, by_table, by_bytes))(files[name], rng)
        elif name.endswith(".json"):
            files[name] = rng.choice((by_json, by_json, by_bytes, by_numbers, nested))(files[name], rng)
        elif name.endswith((".pt", ".png")):
            files[name] = by_bytes(files[name], rng)
        else:
            files[name] = rng.choice((by_lines, by_bytes, by_numbers))(files[name], rng)
        if rng.random() < 0.02:
            files[name] = rng.choice(whole()).get(name, b"")
        elif rng.random() < 0.02 and len(files) > 1:
            del files[name]
    return files


def nested(data: bytes, rng: Random) -> bytes:
    """A JSON text with more brackets, somewhere in it, than a parser of recursive functions can open."""
    at = rng.choice((0, rng.randrange(len(data) + 1)))
    many = rng.choice((500, 100_000))
    return data[:at] + b"[" * many + rng.choice((b"", b"]" * many)) + data[at:]


def one(label: str) -> str:
    """Show the damaged folder of a label, "seed:number", with two commands."""
    rng = Random(f"results {label}")
    place = scratch() / "results"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    kind = rng.choice(("result", "result", "result", "sweep", "sweep", "training"))
    files = rng.choice(whole()) if kind == "result" else continued(kind)
    write_inputs(place)
    for name, content in (("damaged", damaged(files, rng)), ("whole", whole()[0])):
        for file, data in content.items():
            (place / name / file).parent.mkdir(parents=True, exist_ok=True)
            (place / name / file).write_bytes(data)
    gradwire.traces.storage.memory_limits.available_bytes = lambda: ROOM
    with contextlib.chdir(place):
        answers = {shown(*(word.format("damaged") for word in words)) for words in rng.sample(SHOWN_OF[kind], 2)}
    return "refused" if "refused" in answers else "ok"


def shown(*words: str) -> str:
    """Run a command; raises what no command may raise, and AssertionError for messages that are none."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"gradwire {' '.join(words)}") from done.exception
    assert done.exit_code in (0, 1, 2), f"{words}: status {done.exit_code}"
    said = done.output + errors.getvalue()
    assert done.exit_code != 2 or "gradwire: " in said, f"{words}: {said}"
    longest = max(map(len, errors.getvalue().splitlines()), default=0)
    assert longest < MOST_CHARACTERS, f"{words}: a message of {longest} characters"
    return "refused" if done.exit_code == 2 else "ok"
