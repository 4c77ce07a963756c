"""Components of the user's own: what is wrong with them is told in one line, before anything is compiled with them."""

from __future__ import annotations

import pytest
from engine_cases import scenario, share_functions

from gradwire.jit import engine_cache
from gradwire.protocols.registry import resolve_component
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.simulate import simulate

HEAD = "from numba import njit\nfrom gradwire.protocols.load_balancers.base import Balancer\n\n"
SELECT = "switch, next_hops, hop_count, header, body, draws, now"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"@njit\ndef select({SELECT}):\n    return draws.nothing\n", "mine.py:6: Unknown attribute 'nothing'"),
        (f"@njit\ndef select({SELECT}):\n    return undefined % hop_count\n", "mine.py:6: NameError: name 'undefined'"),
        (
            f"@njit\ndef inner(x):\n    return x.nothing\n\n\n@njit\ndef select({SELECT}):\n    return inner(draws)\n",
            "mine.py:6: Unknown attribute 'nothing'",
        ),
        (
            f"@njit\ndef select({SELECT}):\n    if draws:\n        return 0\n",
            "mine.py:4: select of Mine returns sometimes nothing, which is not the index of a next hop",
        ),
        (
            f"@njit\ndef select({SELECT}):\n    pass\n",
            "mine.py:4: select of Mine returns nothing, which is not the index of a next hop",
        ),
        (
            f"@njit\ndef select({SELECT}):\n    return draws / hop_count\n",
            "select of Mine returns float64, which is not the index of a next hop",
        ),
        (
            f"@njit\ndef select({SELECT}):\n    switch.used_bytes = draws / hop_count\n    return 0\n",
            "mine.py:6: a float is written into a record, which holds integers only; use int(...) to truncate or round(...) to round",
        ),
        (
            f"@njit\ndef select({SELECT}):\n    switch.used_bytes *= 0.5\n    return 0\n",
            "mine.py:6: a float is written into a record",
        ),
        (
            f"@njit\ndef note(switch, x):\n    switch.used_bytes = x\n\n\n@njit\ndef select({SELECT}):\n    note(switch, hop_count ** 0.5)\n    return 0\n",
            "mine.py:6: a float is written into a record",
        ),
        (
            f"@njit\ndef inner(x):\n    print(x)\n    return x\n\n\n@njit\ndef select({SELECT}):\n    return inner(draws) % hop_count\n",
            "mine.py:6: compiled rules cannot print; gradwire run --uncompiled runs",
        ),
        (f"def select({SELECT}):\n    return 0\n", "mine.py:4: select of 'mine:Mine' is not compiled; expected @njit"),
        (
            "@njit\ndef select(switch, n):\n    return 0\n",
            "takes 2 arguments, not 7; expected def select(switch, next_hops",
        ),
        ("import nosuchmodule\n", "No module named 'nosuchmodule'"),
        ("import sys\nsys.exit(7)\n", "mine.py:5: SystemExit: 7"),
        ("def choose(:\n", "mine.py:4: invalid syntax"),
        ("1 / 0\n", "mine.py:4: ZeroDivisionError: division by zero"),
    ],
)
def test_user_component_error_is_reported_in_one_line(body, says, tmp_path, own_cache):
    """The error gives name, file, line and reason once, before anything is compiled with the component."""
    owner = "\n\nclass Mine(Balancer):\n    select = staticmethod(select)\n"
    (tmp_path / "mine.py").write_text(HEAD + body + owner)
    made = scenario(load_balancing="mine:Mine").at(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        simulate(made)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert [each for each in engine_cache.cached_engines() if each.about["transports"]] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", ["return 1 // (header - header)", "if port.sent + 1:\n        raise ValueError\n    return 0"]
)
def test_exception_in_compiled_user_rule_is_reported_in_one_line(body, tmp_path, own_cache):
    share_functions()
    rule = f"from numba import njit\n\n\n@njit\ndef admit(port, waiting, header):\n    {body}\n"
    (tmp_path / "mine.py").write_text(f"{rule}\n\nclass Mine:\n    admit = staticmethod(admit)\n")
    with pytest.raises(ScenarioError) as caught:
        simulate(scenario(switch={"policy": "mine:Mine"}).at(tmp_path))
    said = f"user-defined component: a compiled rule of Mine ({tmp_path / 'mine.py'}) has raised an exception; expected"
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_user_rule_may_be_a_compiled_static_method(tmp_path, own_cache):
    share_functions()
    inside = f"class Mine(Balancer):\n    @staticmethod\n    @njit\n    def select({SELECT}):\n        return draws % hop_count\n"
    (tmp_path / "mine.py").write_text(HEAD + inside)
    assert simulate(scenario(load_balancing="mine:Mine").at(tmp_path)).summary["totals"]["finished"]


TRANSPORT = """
from numba import njit


@njit
def start({start}):
    pass


@njit
def pull(params, flow, now):
    return 0


@njit
def on_control(params, flow, kind, sequence, argument, echo, now):
    pass


@njit
def on_data(params, receiver, sequence, size, ce, now):
    return 0


class Mine:
    control_bytes, data_overhead, sender_bitmaps, receiver_bitmaps, fresh_word, probe_word = 64, 0, 0, 1, 40, 0
    start, pull, on_control, on_data = map(staticmethod, (start, pull, on_control, on_data))
    important = parameters = None
"""
POLICY = "from numba import njit\n\n\n@njit\ndef admit({admit}):\n    return 0\n\n\nclass Mine:\n    admit = staticmethod(admit)\n"
BALANCER = (
    HEAD + "@njit\ndef rule({rule}):\n    return 0\n\n\nclass Mine(Balancer):\n    {names} = staticmethod(rule)\n"
)


@pytest.mark.parametrize(
    ("table", "code", "says"),
    [
        (
            "transport",
            TRANSPORT.format(start="M, k, f, now"),
            "mine.py:5: start of 'mine:Mine' takes the state as M, but rules take records now; "
            "expected def start(params, flow, now), with fields as in docs/extending.md",
        ),
        (
            "queue",
            POLICY.format(admit="M, p, c, header"),
            "admit of 'mine:Mine' takes the state as M, but rules take records now; expected def admit(port, waiting, header)",
        ),
        (
            "load_balancing",
            BALANCER.format(rule="M, node, ports, n, A, B, draws, now", names="select"),
            "select of 'mine:Mine' takes the state as M, but rules take records now; expected def select(switch, next_hops",
        ),
        (
            "load_balancing",
            BALANCER.format(rule="M, node, ports, n, A, B, draws, now", names="choose"),
            "load_balancing: 'mine:Mine' has the former choose and no select; "
            "expected select in place of choose (docs/extending.md)",
        ),
        (
            "load_balancing",
            BALANCER.format(rule=SELECT, names="choose = pick = heard"),
            "'mine:Mine' has the former choose, pick, heard and no select; expected select in place of choose, "
            "pick_path in place of pick, on_feedback in place of heard (docs/extending.md)",
        ),
    ],
)
def test_former_rule_signatures_are_rejected_with_a_hint(table, code, says, tmp_path):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ScenarioError) as caught:
        resolve_component(table, "mine:Mine", tmp_path)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_current_rule_signatures_are_accepted(tmp_path):
    codes = {
        "transport": TRANSPORT.format(start="params, flow, now"),
        "queue": POLICY.format(admit="port, waiting, header"),
        "load_balancing": BALANCER.format(rule=SELECT, names="choose = select"),
    }
    for table, code in codes.items():
        (tmp_path / "mine.py").write_text(code)
        assert resolve_component(table, "mine:Mine", tmp_path).__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("os:path", "'os:path' is not a class; expected a class as gradwire.protocols.transports.base describes it"),
        ("os:nothing", "cannot load 'os:nothing': no nothing in "),
        ("nosuch:Class", "No module named 'nosuch'"),
        ("fractions:Fraction", "'fractions:Fraction' has no control_bytes, data_overhead"),
    ],
)
def test_invalid_transport_class_is_rejected(name, says):
    with pytest.raises(ScenarioError) as caught:
        resolve_component("transport", name)
    assert says in str(caught.value)
