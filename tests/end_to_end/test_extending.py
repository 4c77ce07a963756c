"""A transport and a load balancer of one's own, as the documentation runs them."""

import importlib
import sys
from pathlib import Path

import pytest

from gradwire.protocols.registry import resolve_component
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.sim.engine.specialization import _digest as digest_of
from gradwire.sim.preparation import prepare_inputs
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, leaf_spine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
US = 10**6
HEADERS, PAYLOAD, SHARE = 58, 4096, 60
PS_PER_BYTE = 80  # 100 Gbps


def test_user_transport_sends_at_its_constant_rate():
    result = simulate(load_scenario(EXAMPLES / "constant_rate.toml"))
    rows = result.messages.to_pylist()
    assert len(rows) == 2 * 3 * 4 * len({row["part"] // 4 for row in rows})
    gap = -(-(PAYLOAD + HEADERS) * PS_PER_BYTE * 100 // SHARE)  # start to start of two full packets
    for row in rows:
        assert row["lost_bytes"] == 0
        full, rest = divmod(row["bytes"], PAYLOAD)
        last = max((rest or PAYLOAD) + HEADERS, 60) * PS_PER_BYTE
        sending = (full if rest else full - 1) * gap
        # two links: the last packet is stored and forwarded once; 2 us of software, 1 us on each link
        least = 2_000_000 + sending + 2 * (last + 1_000_000)
        took = row["end_ps"] - row["start_ps"]
        assert took >= least - full  # rounding of the gap: less than a picosecond a packet
        assert row["sent_packets"] == row["packets"]


@pytest.fixture(scope="module")
def results():
    scenario = load_scenario(EXAMPLES / "two_choices.toml")
    return {name: simulate(scenario.variant(name)) for name in ("two_choices", "spray_random")}


def longest_queue(result):
    """Bytes, at the ports where there is a choice: from a leaf to a spine."""
    return max(
        row["peak_queue_bytes"] for row in result.ports.to_pylist() if row["port"].startswith("leaf") and "spine" in row["port"]
    )  # fmt: skip


def test_two_choices_balancer_keeps_queues_short(results):
    """Eight hosts of a leaf send at line rate over eight spines. One random choice makes long queues, two do not."""
    assert longest_queue(results["two_choices"]) * 4 < longest_queue(results["spray_random"])
    ends = {name: max(result.messages["end_ps"].to_pylist()) for name, result in results.items()}
    assert ends["two_choices"] < ends["spray_random"]
    assert all(set(result.messages["lost_bytes"].to_pylist()) == {0} for result in results.values())


def test_user_transport_and_balancer_match_oracle(monkeypatch):
    """Both examples run together and match the oracle packet by packet, which runs them uncompiled."""
    monkeypatch.chdir(EXAMPLES)
    table = UserTransport.model_validate({"kind": "constant_rate:ConstantRate", "payload": "1000B", "percent": 60})
    letters = [MessageSpec(n % 3 * US, n, (n + 5) % 12, 30_000 + 777 * n) for n in range(12)]
    network = leaf_spine(3, 4, 3, LinkSpec(10**10, US))
    switch = Switch.model_validate({"buffer": "4MB"})
    case = Case(network, [table], letters, switch, "two_choices:TwoChoices", 1, 2 * US)
    expected = run_oracle(case)
    for threads in (1, 2):
        assert first_difference(run_engine(case, threads=threads), expected) == ""
    assert len(expected.arrivals) == 12


@pytest.mark.parametrize("name", ["constant_rate.py", "two_choices.py"])
def test_extension_examples_are_short(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


HELPER = "from numba import njit\n\nSTEP = {step}\n\n@njit\ndef turn(count, n):\n    return (count {sign} 1) % n\n"
MINE = """
import {helper}
from numba import njit
from {helper} import STEP, turn

from gradwire.protocols.load_balancers.base import Balancer


@njit
def select(switch, next_hops, hop_count, header, body, draws, now):
    return {call}turn(STEP * draws, hop_count)


class Mine(Balancer):
    select = staticmethod(select)
"""


@pytest.mark.parametrize("call", ["", "one."])
def test_engine_digest_changes_with_helpers_of_user_components(tmp_path, monkeypatch, call):
    """Cached engines are found by a hash of all code compiled into them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    hashes = []
    for step, sign in ((1, "+"), (1, "-"), (3, "+"), (1, "+")):
        (tmp_path / "one.py").write_text(HELPER.format(step=step, sign=sign))
        (tmp_path / "mine.py").write_text(MINE.format(helper="one", call=call))
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name == "one" or name.startswith("gradwire_user_")]:
            monkeypatch.delitem(sys.modules, name)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            mine = resolve_component("load_balancing", "mine:Mine", tmp_path)
        finally:
            sys.dont_write_bytecode = before
        hashes.append(digest_of("", [mine]))
    assert len(set(hashes)) == 3 and hashes[0] == hashes[3]


def test_parameters_of_user_transport_are_checked():
    with pytest.raises(ScenarioError) as raised:
        prepare_inputs(
            load_scenario(EXAMPLES / "constant_rate.toml", set=["transport.percent=0", "transport.persent=1"])
        )
    told = sorted(map(str, raised.value.mistakes))
    assert told[0].startswith("transport.percent: is out of range (got 0)")
    assert told[1] == 'transport.persent: unknown key; expected "percent"'
    prepare_inputs(load_scenario(EXAMPLES / "constant_rate.toml"))
