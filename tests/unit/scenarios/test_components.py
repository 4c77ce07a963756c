"""Components: a new one is a new file, found by schema, checks, reference and both worlds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import new_components
import pytest
from emu_cases import needs
from sim_cases import make_trace

from gradwire.scenarios.loading import registry
from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, components
from gradwire.scenarios.wire import UDP_OVERHEAD, frame_bytes

ROOT = Path(__file__).resolve().parents[3]
ROOMS = (
    "scenarios", "result_store", "jit", "protocols", "traces", "topology", "workload", "sim", "emu", "training", "analysis", "studies", "docs",
)  # fmt: skip
PAYLOAD, PACKETS = 1400, 20
SCENARIO = """
name = "new"
load_balancing = "{balancer}"
topology = {{ kind = "parallel", side = 2, ways = 2 }}
link = {{ rate = "{rate}", latency = "1us" }}
host = {{ software_latency = "30us" }}
transport = {{ kind = "halved", halvings = {halvings}, payload = "{payload}B", repeat_after = "1s" }}
"""
JOB = """
[[job]]
name = "j"
trace = "./trace"
workers = 2
iterations = 3
compute_scale = 0
placement = {{ workers = ["h0", "h2"] }}
exchange = {{ kind = "direct", copies = {copies} }}
"""
TRAFFIC = """
[[traffic]]
name = "t"
kind = "end_to_end"
size = "{size}B"
"""


def text(*tables: str, balancer: str = "first_way", rate: str = "1Gbps", halvings: int = 1, copies: int = 1) -> str:
    """A scenario of new components only."""
    return "".join((SCENARIO, *tables)).format(
        balancer=balancer, rate=rate, halvings=halvings, copies=copies, payload=PAYLOAD, size=PAYLOAD * PACKETS
    )


Run = Callable[..., str]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of gradwire with a new file in each package of components, and nothing else changed."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "gradwire", root / "gradwire", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    leave_out = shutil.ignore_patterns("__pycache__", "bundled", "images")
    for room in ROOMS:
        shutil.copytree(ROOT / room, root / room, ignore=leave_out)
    (root / "traces" / "bundled").symlink_to(ROOT / "traces" / "bundled")
    (root / "testing").mkdir()
    (root / "benchmarks").mkdir()
    for place, (name, code) in new_components.FILES.items():
        file = root.joinpath(*COMPONENT_PACKAGES[place].split(".")[1:], f"{name}.py")
        assert not file.exists()
        file.write_text(code)
    make_trace([[PAYLOAD * PACKETS // 4]]).save(root / "trace")
    return root


@pytest.fixture
def run(tree: Path) -> Run:
    """Runs Python in that copy; what it prints."""

    def python(code: str, fails: int = 0, limit: float = 300) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "import json, sys\n" + code], capture_output=True, text=True, timeout=limit, cwd=tree,
            check=False, env={**os.environ, "PYTHONPATH": str(tree)},
        )  # fmt: skip
        assert done.returncode == fails, done.stderr
        return done.stdout if not fails else done.stderr

    return python


CLI = "sys.argv = ['gradwire', *{arguments}]; from gradwire.cli import main; main()"


def test_subprocess_imports_the_copied_package(run: Run, tree: Path):
    assert Path(run("import gradwire; print(gradwire.__file__)").strip()).is_relative_to(tree)


def test_schema_lists_new_components(run: Run):
    schema = json.loads(run(CLI.format(arguments=["schema"])))
    for model, key, says in (
        ("Halved", "halvings", "How many times."),
        ("Parallel", "ways", "Switches in the middle."),
        ("EndToEnd", "times", "How many flows start at once."),
        ("Direct", "copies", "How often every gradient is sent."),
    ):
        assert schema["$defs"][model]["properties"][key]["description"] == says
        assert schema["$defs"][model]["properties"][key]["default"] in (1, 2)
    assert "first_way" in schema["properties"]["load_balancing"]["examples"]


def test_reference_page_lists_new_components(run: Run):
    text = run("from docs.reference import reference; print(reference())")
    for title, row in (
        ('[transport] kind = "halved"', "| `halvings` | whole number | `1` | How many times. |"),
        ('[topology] kind = "parallel"', "| `ways` | whole number | `2` | Switches in the middle. |"),
        ('[[traffic]] kind = "end_to_end"', "| `times` | whole number | `1` | How many flows start at once. |"),
        ('[job.exchange] kind = "direct"', "| `copies` | whole number | `1` | How often every gradient is sent. |"),
    ):
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        assert row in section
    assert '`"first_way"`' in text


def test_check_validates_new_components(run: Run, tree: Path):
    file = tree / "new.toml"
    check = CLI.format(arguments=["check", str(file)])
    file.write_text(text(JOB, TRAFFIC))
    assert run(check).startswith("new is valid")
    file.write_text(text(JOB, TRAFFIC, halvings=-1, copies=0).replace("side = 2", "side = 0"))
    said = run(check, fails=2)
    for where in ("transport.halvings", "job[0].exchange.copies", "topology.side"):
        assert f"{where}: is out of range" in said
    file.write_text(text(JOB, TRAFFIC).replace("workers = 2", "workers = 1").replace('["h0", "h2"]', '["h4"]'))
    said = run(check, fails=2)
    assert "job[0].workers: has nobody to send to" in said, "what a kind says of its own"
    file.write_text(text(JOB, TRAFFIC).replace('"h2"', '"h4"'))
    assert 'is not a host of the topology (got "h4")' in run(check, fails=2), "how many hosts there are"


SIMULATED = """
import gradwire
result = gradwire.simulate(gradwire.load_scenario({file!r}))
ports = {{row["port"]: row["packets"] for row in result.ports.to_pylist()}}
print(json.dumps([result.messages.to_pylist(), result.iterations.to_pylist(), ports]))
"""


def one_message(rate: int, latency: int) -> int:
    """Picoseconds from the first bit of a message to the delivery: packets leave at half the rate of the line, two
    packets' times from start to start, and the last one crosses four links (our transport knows no window)."""
    packet = frame_bytes(PAYLOAD, UDP_OVERHEAD) * 8 * 10**12 // rate
    return (PACKETS - 1) * 2 * packet + 4 * (packet + latency)


def test_job_with_new_components_matches_closed_form(run: Run, tree: Path):
    (tree / "job.toml").write_text(text(JOB))
    messages, iterations, ports = json.loads(run(SIMULATED.format(file=str(tree / "job.toml"))))
    assert len(messages) == 3 * 2 and {row["kind"] for row in messages} == {"push"}
    takes = 30_000_000 + one_message(10**9, 1_000_000)  # with the hosts' software latency
    ends = sorted({(row["iteration"], row["end_ps"]) for row in iterations})
    assert ends == [(number, (number + 1) * takes) for number in range(3)]
    for port in ("left->m0", "m0->right"):  # data, and Stops the other way round; the run ends before the last one
        assert 3 * PACKETS <= ports[port] <= 3 * (PACKETS + 1)
    assert ports["m1->right"] == ports["left->m1"] == 0, "the balancer takes the first way"


def test_traffic_with_new_components_matches_closed_form(run: Run, tree: Path):
    (tree / "traffic.toml").write_text(text(TRAFFIC))
    (message,), _, ports = json.loads(run(SIMULATED.format(file=str(tree / "traffic.toml"))))
    assert (message["src"], message["dst"]) == ("h0", "h3")
    assert message["end_ps"] - message["start_ps"] == one_message(10**9, 1_000_000)
    assert ports["h0->left"] == PACKETS


def test_testbed_reports_unsupported_new_components(run: Run, tree: Path):
    (tree / "abilities.toml").write_text(text(JOB))
    said = run(
        "import gradwire\n"
        "from gradwire.emu.planning.capabilities import available_transports, missing_features\n"
        "from gradwire.emu.planning.planner import check_scenario\n"
        f"scenario = gradwire.load_scenario({str(tree / 'abilities.toml')!r})\n"
        "try:\n"
        "    check_scenario(scenario)\n"
        "except gradwire.ScenarioError as error:\n"
        "    wrong = [each.path for each in error.mistakes]\n"
        "print(json.dumps(['halved' in available_transports(), missing_features(scenario.transport), wrong]))\n"
    )
    assert json.loads(said) == [True, [], ["load_balancing"]]


@needs("namespaces", "tun")
@pytest.mark.wall
@pytest.mark.slow
def test_testbed_runs_new_components(run: Run, tree: Path):
    (tree / "testbed.toml").write_text(text(JOB, TRAFFIC, balancer="ecmp", rate="20Mbps"))
    said = run(
        "import gradwire\n"
        "from gradwire.emu.testbed import Request\n"
        f"scenario = gradwire.load_scenario({str(tree / 'testbed.toml')!r})\n"
        "result = gradwire.emulate(scenario, request=Request('wall', 'userspace', rounds=1))\n"
        "print(json.dumps([result.messages.to_pylist(), result.iterations.to_pylist()]))\n"
    )
    messages, iterations = json.loads(said)
    assert sorted(row["kind"] for row in messages) == ["flow"] + 6 * ["push"]
    assert all(row["received_bytes"] == row["bytes"] == PAYLOAD * PACKETS for row in messages)
    assert sorted((row["worker"], row["iteration"]) for row in iterations) == [
        (worker, iteration) for worker in range(2) for iteration in range(3)
    ]
    least = one_message(20 * 10**6, 1_000_000)
    flow = next(row for row in messages if row["kind"] == "flow")
    assert flow["end_ps"] - flow["start_ps"] > 0.9 * least, "paced at half the line, whatever the machine does"


def test_duplicate_component_kind_is_rejected(run: Run):
    said = run(
        "import importlib, pathlib, tempfile\n"
        "from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, components\n"
        "package = importlib.import_module(COMPONENT_PACKAGES['transport'])\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "(folder / 'twice.py').write_text(pathlib.Path(package.__path__[0], 'halved.py').read_text())\n"
        "package.__path__.append(str(folder))\n"
        "components('transport')\n",
        fails=1,
    )
    assert "both have a transport called halved" in said


@pytest.mark.parametrize("place", COMPONENT_PACKAGES)
def test_components_have_docstrings_and_lowercase_kinds(place: str):
    assert components(place)
    for kind, owner in components(place).items():
        assert owner.__doc__ and kind == kind.lower()


def test_scenario_imports_only_the_components_it_names():
    code = (
        "import json, sys; from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, components;"
        "from gradwire.scenarios.loading.load import load_scenario; load_scenario('permutation', policy='{policy}');"
        "known = set(sys.modules);"
        "print(json.dumps([[kind for kind, each in components(place).items() if each.__module__ in known]"
        " for place in ('transport', 'load_balancing', 'topology', 'traffic', 'exchange', 'scheduler', 'reducer', 'system',"
        " 'fault')]))"
    )
    for policy, transports, balancers in (
        ("ecmp", ["dctcp"], ["ecmp"]), ("dlcp-spray", ["dctcp", "dlcp"], ["spray_random"]),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code.format(policy=policy)], capture_output=True, text=True, timeout=60, cwd=ROOT,
            check=True,
        )  # fmt: skip
        assert json.loads(done.stdout) == [transports, balancers, ["fat_tree"], ["permutation"], [], [], [], [], []]


def test_component_registry_imports_no_heavy_packages():
    code = (
        "import sys; from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, components; [components(each) for each in COMPONENT_PACKAGES];"
        "print(*({'numba', 'torch', 'numpy', 'networkx', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == ""


COLLECTIVE = '''
from __future__ import annotations
from typing import Literal
from gradwire.workload.collectives.common.staged_table import StagedTable


class Mine(StagedTable):
    """Mine."""

    kind: Literal["mine"]

    def parts(self, workers):
        return 1

    {rest}
'''
SCHEDULER = '''
from __future__ import annotations
from typing import Literal
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.job.scheduler import SchedulerTable


class Mine(SchedulerTable):
    """Mine."""

    kind: Literal["{kind}"]

    def scheduling(self, job: Job, trace):
        {rest}
'''
OWN_JOB = """
name = "own"
topology = { kind = "star", hosts = 2 }
[[job]]
name = "j"
trace = "./trace"
workers = 2
"""
WRONG: dict[str, tuple[str, str, str, str]] = {
    "transfers that raises": (
        "exchange", COLLECTIVE.format(rest="def transfers(self, workers, rails):\n        return 1 / 0"),
        "exchange", "mine.py:16: ZeroDivisionError: division by zero",
    ),
    "transfers that gives nothing": (
        "exchange", COLLECTIVE.format(rest="def transfers(self, workers, rails):\n        pass"),
        "exchange", "mine.py: transfers of Mine returns a NoneType; expected Transfers",
    ),
    "no transfers": (
        "exchange", COLLECTIVE.format(rest="slots = 1"), "exchange", "mine.py: Mine has no transfers; expected all"
    ),
    "no such name": (
        "exchange", COLLECTIVE.format(rest="slots = nowhere"), "exchange", "mine.py:15: NameError: name 'nowhere'"
    ),
    "no Python": ("exchange", COLLECTIVE.format(rest="slots = ="), "exchange", "mine.py:15: invalid syntax"),
    "a kind there is": (
        "scheduler", SCHEDULER.format(kind="p3", rest="pass"), "scheduler", "p3.py both have a scheduler called p3"
    ),
    "scheduling that raises": (
        "scheduler", SCHEDULER.format(kind="mine", rest="return [][1]"), "scheduler",
        "mine.py:14: IndexError: list index out of range",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_component_error_is_reported_in_one_line(run: Run, tree: Path, what: str):
    """An error in a user's component file is reported with file and line, by check and by run."""
    place, code, key, said = WRONG[what]
    file = tree.joinpath(*COMPONENT_PACKAGES[place].split(".")[1:], "mine.py")
    command = "run" if what == "scheduling that raises" else "check"
    out = ["--out", str(tree / "never")] if command == "run" else []
    chosen = {"exchange": "ring", key: "mine"}
    keys = "".join(f'{each} = {{ kind = "{kind}" }}\n' for each, kind in chosen.items())
    (tree / "own.toml").write_text(OWN_JOB + keys)
    file.write_text(code)
    try:
        told = run(CLI.format(arguments=[command, str(tree / "own.toml"), *out]), fails=2)
    finally:
        file.unlink()
    lines = [line for line in told.splitlines() if not line.startswith("note:")]
    assert "Traceback" not in told and len(lines) == 1, told
    assert said in told
    assert not (tree / "never").exists()


@pytest.mark.parametrize("place", COMPONENT_PACKAGES)
def test_registry_finds_every_component_module(place: str) -> None:
    """A listing imports only modules whose text declares a kind; importing all modules finds no other component."""
    found = {kind for name in registry._modules(place) for kind in registry._in(name)}
    assert set(components(place)) == found and len(registry._modules(place)) >= len(found) > 0
