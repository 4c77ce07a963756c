"""Mistakes in components of one's own: one message with the file, and never a traceback or a wrong Result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from output_cases import run
from sim_cases import US

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.specialization import compile_ahead
from gradwire.sim.preparation import prepare_inputs
from gradwire.sim.simulate import simulate
from gradwire.testing import Case, MessageSpec, agree, transport
from gradwire.testing.oracle import run_oracle
from gradwire.topology import LinkSpec, leaf_spine, star

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RATE = (EXAMPLES / "constant_rate.py").read_text()
BALANCER = """
from numba import njit
from gradwire.protocols.load_balancers.base import Balancer

@njit
def select(switch, next_hops, hop_count, header, body, draws, now):
    return {returned}

class Mine(Balancer):
    select = staticmethod(select)
"""
POLICY = """
from numba import njit

@njit
def admit(port, waiting, header):
    return {returned}

class Mine:
    admit = staticmethod(admit)
"""
SCENARIO = """
name = "mine"
transport = "mine:ConstantRate"
topology = { kind = "leaf_spine", leaves = 2, hosts_per_leaf = 2, spines = 2 }
traffic = [{ name = "t", kind = "permutation", shift = 2, size = "20kB" }]
"""


@pytest.fixture
def scenario(tmp_path):
    """Writes what is named in it, and loads it."""

    def written(code: str, set: tuple[str, ...] = ()):
        (tmp_path / "mine.py").write_text(code)
        (tmp_path / "mine.toml").write_text(SCENARIO)
        return load_scenario(tmp_path / "mine.toml", set=set)

    return written


def with_parameters(given: str) -> str:
    head, mark, _ = RATE.partition("    def parameters(settings, context):\n")
    assert mark
    return f"{head}{mark}        return {given}\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[1 / 0]", "ZeroDivisionError: division by zero"),
        ("[0] * 33", "returns 33 numbers; expected a list of at most 32 integers"),
        ("[1, 4.5]", "returns 4.5 as number 1, which is not an integer"),
        ("[1 << 63]", "which does not fit 64 bits"),
        ("5", "returns 5; expected a list of at most 32 integers"),
        ("[settings['speed']]", "KeyError: 'speed'"),
    ],
)
def test_check_rejects_invalid_transport_parameters(scenario, tmp_path, given, says):
    code = with_parameters(given)
    with pytest.raises(ScenarioError) as raised:
        prepare_inputs(scenario(code))
    line = 1 + code.splitlines().index("    def parameters(settings, context):")
    told = str(raised.value)
    assert says in told
    places = [f"{tmp_path / 'mine.py'}:{each}:" for each in (line - 1, line + 1)]  # the rule, or what it was stopped by
    assert any(place in told for place in places), told


NUMBERS = "sender_bitmaps, receiver_bitmaps, fresh_word, probe_word = 0, 1, RateFlow.next_packet.offset, 0"


def test_check_rejects_fewer_bitmaps_and_parameters_than_declared(scenario):
    """The engine would write beyond the record."""
    one, two = 'next_packet = Word("number of the next packet")', '    lost = Bitmap(1, "lost")'
    for code, says in (
        (
            RATE.replace(one, f"{one}\n{two}").replace("import Word", "import Bitmap, Word"),
            "sender_bitmaps of 'mine:ConstantRate' is 0; expected at least 2, the number of bitmaps that RateFlow declares",
        ),
        (with_parameters("[]"), "parameters of ConstantRate returns 0 numbers; expected 1, one for each field of Rate"),
    ):
        with pytest.raises(ScenarioError) as raised:
            prepare_inputs(scenario(code))
        assert says in str(raised.value)


@pytest.mark.parametrize(
    ("found", "given", "says"),
    [
        (
            NUMBERS,
            NUMBERS.replace("= 0,", "= -1,"),
            "sender_bitmaps of 'mine:ConstantRate' is -1; expected a whole number from 0",
        ),
        (
            NUMBERS,
            NUMBERS.replace("= 0,", "= 'none',"),
            "sender_bitmaps of 'mine:ConstantRate' is 'none'; expected a whole",
        ),
        (
            NUMBERS,
            NUMBERS.replace("RateFlow.next_packet.offset", "True"),
            "fresh_word of 'mine:ConstantRate' is True; expected a whole number from 0",
        ),
        (
            NUMBERS,
            NUMBERS.replace("RateFlow.next_packet.offset", "0"),
            "fresh_word of 'mine:ConstantRate' is 0; expected the offset of the sender's field that counts packets",
        ),
        (
            NUMBERS,
            NUMBERS.replace("RateFlow.next_packet.offset, 0", "RateFlow.next_packet.offset, 999"),
            "probe_word of 'mine:ConstantRate' is 999; expected the offset of a field of the sender's record, which has ",
        ),
        ('"udp", True', '"upd", True', "wire of 'mine:ConstantRate' is 'upd'; expected one of tcp, udp, roce"),
        ("percent: Count = 100", "percent = 100", "A non-annotated attribute was detected: `percent = 100`. "),
    ],
)
def test_check_rejects_invalid_transport_class_attributes(scenario, found, given, says):
    assert RATE.count(found) == 1
    with pytest.raises(ScenarioError) as raised:
        prepare_inputs(scenario(RATE.replace(found, given)))
    assert str(raised.value).startswith("transport.kind: ") and says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_transport_may_have_32_parameters(scenario):
    prepare_inputs(scenario(with_parameters("[-(1 << 63)] + [(1 << 63) - 1] * 31")))


RULE = "def pull(params, flow: RateFlow, now):\n"
PULLS = RATE.replace(RULE, f"{RULE}    if flow.sent == 2:\n        return {{returned}}\n")


@pytest.mark.parametrize("returned", ["5", "-2"])
def test_invalid_packet_number_of_user_transport_ends_the_run(scenario, tmp_path, returned):
    code = PULLS.replace("{returned}", returned)
    assert code.count("flow.sent") == 1
    with pytest.raises(ScenarioError) as raised:
        simulate(scenario(code, ("traffic[0].size=20480B",)))
    told = str(raised.value)
    assert told.startswith(f"transport: {tmp_path / 'mine.py'}:")
    assert (
        f"pull of ConstantRate returned {returned}, an invalid packet number; expected a packet of the message, below 5"
        in told
    )


@pytest.mark.parametrize("returned", ["hop_count", "-1"])
def test_invalid_next_hop_of_user_balancer_ends_the_run(scenario, tmp_path, returned):
    with pytest.raises(ScenarioError) as raised:
        simulate(scenario(BALANCER.replace("{returned}", returned), ("transport=dctcp", "load_balancing=mine:Mine")))
    told = str(raised.value)
    assert told.startswith(f"load_balancing: {tmp_path / 'mine.py'}:")
    assert "an invalid next hop; expected the index of a next hop, below 2" in told


def test_invalid_verdict_of_user_queue_policy_ends_the_run(scenario):
    incast = 'traffic=[{name="t",kind="incast",fan_in=3,size="20kB"}]'
    made = scenario(POLICY.replace("{returned}", "4"), ("transport=dctcp", "switch.policy=mine:Mine", incast))
    with pytest.raises(ScenarioError, match="admit of Mine returned 4, an invalid verdict"):
        simulate(made)


def test_oracle_rejects_invalid_return_values_of_user_rules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    letters = [MessageSpec(0, 0, 3, 20_480), MessageSpec(0, 1, 3, 20_480)]
    network = leaf_spine(2, 2, 2, LinkSpec(10**10, US))
    (tmp_path / "far.py").write_text(PULLS.replace("{returned}", "7"))
    with pytest.raises(ScenarioError, match="pull of ConstantRate returned 7"):
        run_oracle(Case(network, [transport("far:ConstantRate", percent=100)], letters))
    (tmp_path / "astray.py").write_text(BALANCER.replace("{returned}", "hop_count + 5"))
    with pytest.raises(ScenarioError, match="select of Mine returned 7, an invalid next hop"):
        run_oracle(Case(network, [transport("dctcp")], letters, balancing="astray:Mine"))
    (tmp_path / "odd.py").write_text(POLICY.replace("{returned}", "-1"))
    with pytest.raises(ScenarioError, match="admit of Mine returned -1, an invalid verdict"):
        run_oracle(Case(network, [transport("dctcp")], letters, Switch(policy="odd:Mine")))


def test_user_queue_policy_matches_oracle(monkeypatch):
    """Engine and oracle agree packet by packet, random draws included; the policy does drop packets by choice."""
    monkeypatch.chdir(EXAMPLES)
    letters = [MessageSpec(n * US // 3, n, 8, 60_000) for n in range(8)]
    switch = Switch.model_validate({"queues": 1, "buffer": "64KiB", "ecn_threshold": "32KiB", "policy": "wred:Wred"})
    case = Case(star(9, LinkSpec(10**10, US)), [transport("tcp_newreno", payload="1000B")], letters, switch)
    seen = agree(case, threads=2)
    causes = {drop.cause for drop in seen.drops}
    assert "selective" in causes and len(seen.arrivals) == 8


def test_invalid_queue_policies_are_rejected():
    for wrong in (
        {"policy": "red"},
        {"policy": "threshold", "ecn_threshold": "8KiB", "ecn_ceiling": "9KiB"},
        {"policy": "rde"},
    ):
        with pytest.raises(ValueError):
            Switch.model_validate(wrong)
    assert Switch.model_validate({"policy": "threshold"}).queue_policy == Switch().queue_policy == "threshold"


LAST = """
name = "mine"
transport = { kind = "mine:ConstantRate", payload = "1024B" }
topology = { kind = "star", hosts = 256 }

[[traffic]]
name = "all"
kind = "permutation"
size = "1MB"

[[traffic]]
name = "one"
kind = "flows"
file = "one.txt"
"""


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, 255])
def test_exception_in_user_rule_ends_all_threads(tmp_path, host):
    """One packet of one host raises an exception in its rule; the other thread would wait for it for ever."""
    stops = "    if flow.packets == 99 and flow.sent == 50:\n        return 1 // (now - now)\n"
    assert RATE.count(RULE) == 1
    (tmp_path / "mine.py").write_text(RATE.replace(RULE, RULE + stops))
    (tmp_path / "mine.toml").write_text(LAST)
    (tmp_path / "one.txt").write_text(f"1\n{host} 100 3 {99 * 1024} 0\n")
    done = run("run", "mine.toml", "--threads", "2", "--out", "results", timeout=120)
    assert done.returncode == 2
    said = f"gradwire: user-defined component: a compiled rule of ConstantRate ({tmp_path / 'mine.py'}) has raised an exception; expected"
    assert done.stderr.splitlines()[-1].startswith(said) and "Traceback" not in done.stderr
    left = sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__")
    assert left == ["mine.py", "mine.toml", "one.txt"]


FOREVER = BALANCER.replace("    return {returned}", "    while True:\n        if draws < 0:\n            return 0")
ASKED = """
from gradwire.cli import main, watchdog
watchdog.GRACE_S = 0.5
main()
"""


@pytest.fixture(scope="module")
def forever(tmp_path_factory):
    """A scenario with a rule that loops for ever, whose engine is there: it is known by its folder, too."""
    folder = tmp_path_factory.mktemp("forever")
    (folder / "mine.py").write_text(FOREVER)
    file = folder / "mine.toml"
    file.write_text('load_balancing = "mine:Mine"\n' + SCENARIO.replace('"mine:ConstantRate"', '"dctcp"'))
    compile_ahead([load_scenario(file)])
    return file


@pytest.mark.slow
def test_wall_limit_ends_user_rule_with_endless_loop(forever):
    """The engine looks at the clock when its machine code returns, which it does not."""
    command = [sys.executable, "-c", ASKED, "run", str(forever), "--max-wall", "1s"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1
    assert "compiled code has not returned for 0.5 s" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_user_rule_with_endless_loop(forever, number, code):
    """Python cannot handle the signal, because the machine code does not return."""
    command = [sys.executable, "-c", ASKED, "run", str(forever)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as run:
        try:
            while _computed(run.pid) < 1.5:
                assert run.poll() is None, run.communicate()[1]
                time.sleep(0.05)
            run.send_signal(number)
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == code
    assert "compiled code has not returned for 0.5 s" in said and "Traceback" not in said


def _computed(process: int) -> float:
    """Seconds of processor time, in user mode."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")
