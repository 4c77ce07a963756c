"""Components of the user's own: what is wrong with them is told in one line, before anything is compiled with them."""

from __future__ import annotations

import pytest
from engine_cases import scenario, share_functions

from gradwire.jit import engine_cache
from gradwire.protocols.registry import resolve_component
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.simulate import simulate

HEAD = "from numba import njit\nfrom gradwire.protocols.load_balancers.base import Balancer\n\n"
CHOOSE = "M, node, ways, n, A, B, count, now"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"@njit\ndef choose({CHOOSE}):\n    return count.nothing\n", "mine.py:6: Unknown attribute 'nothing'"),
        (f"@njit\ndef choose({CHOOSE}):\n    return undefined % n\n", "mine.py:6: NameError: name 'undefined'"),
        (
            f"@njit\ndef inner(x):\n    return x.nothing\n\n\n@njit\ndef choose({CHOOSE}):\n    return inner(count)\n",
            "mine.py:6: Unknown attribute 'nothing'",
        ),
        (
            f"@njit\ndef choose({CHOOSE}):\n    if count:\n        return 0\n",
            "mine.py:4: choose of Mine returns sometimes nothing, which is not a way",
        ),
        (f"@njit\ndef choose({CHOOSE}):\n    pass\n", "mine.py:4: choose of Mine returns nothing, which is not a way"),
        (f"@njit\ndef choose({CHOOSE}):\n    return count / n\n", "choose of Mine returns float64, which is not a way"),
        (
            f"@njit\ndef choose({CHOOSE}):\n    M[node] = count / n\n    return 0\n",
            "mine.py:6: a float is written into M, which holds integers only; use int(...) to truncate or round(...) to round",
        ),
        (f"@njit\ndef choose({CHOOSE}):\n    M[node] *= 0.5\n    return 0\n", "mine.py:6: a float is written into M"),
        (
            f"@njit\ndef note(M, node, x):\n    M[node] = x\n\n\n@njit\ndef choose({CHOOSE}):\n    note(M, node, n ** 0.5)\n    return 0\n",
            "mine.py:6: a float is written into M",
        ),
        (
            f"@njit\ndef inner(x):\n    print(x)\n    return x\n\n\n@njit\ndef choose({CHOOSE}):\n    return inner(count) % n\n",
            "mine.py:6: compiled rules cannot print; gradwire.testing.FlowHarness runs",
        ),
        (f"def choose({CHOOSE}):\n    return 0\n", "mine.py:4: choose of 'mine:Mine' is not compiled; expected @njit"),
        ("@njit\ndef choose(M, n):\n    return 0\n", "takes 2 arguments, not 8; expected def choose(M, node"),
        ("import nosuchmodule\n", "No module named 'nosuchmodule'"),
        ("import sys\nsys.exit(7)\n", "mine.py:5: SystemExit: 7"),
        ("def choose(:\n", "mine.py:4: invalid syntax"),
        ("1 / 0\n", "mine.py:4: ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_ones_own_component_is_told_in_one_line(body, says, tmp_path, own_cache):
    """Name, file, line and reason, before anything is compiled with it; and only once."""
    owner = "\n\nclass Mine(Balancer):\n    choose = staticmethod(choose)\n"
    (tmp_path / "mine.py").write_text(HEAD + body + owner)
    made = scenario(load_balancing="mine:Mine").at(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        simulate(made)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert [each for each in engine_cache.cached_engines() if each.about["transports"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("body", ["return 1 // (c - c)", "if M[p] + 1:\n        raise ValueError\n    return 0"])
def test_an_exception_in_a_compiled_rule_is_told_in_one_line(body, tmp_path, own_cache):
    share_functions()
    rule = f"from numba import njit\n\n\n@njit\ndef admit(M, p, c, A):\n    {body}\n"
    (tmp_path / "mine.py").write_text(f"{rule}\n\nclass Mine:\n    admit = staticmethod(admit)\n")
    with pytest.raises(ScenarioError) as caught:
        simulate(scenario(switch={"policy": "mine:Mine"}).at(tmp_path))
    said = f"user-defined component: a compiled rule of Mine ({tmp_path / 'mine.py'}) has raised an exception; expected"
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_functions_may_be_defined_in_the_class(tmp_path, own_cache):
    share_functions()
    inside = (
        f"class Mine(Balancer):\n    @staticmethod\n    @njit\n    def choose({CHOOSE}):\n        return count % n\n"
    )
    (tmp_path / "mine.py").write_text(HEAD + inside)
    assert simulate(scenario(load_balancing="mine:Mine").at(tmp_path)).summary["totals"]["finished"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("os:path", "'os:path' is not a class; expected a class as gradwire.protocols.transports.base describes it"),
        ("os:nothing", "cannot load 'os:nothing': no nothing in "),
        ("nosuch:Class", "No module named 'nosuch'"),
        ("fractions:Fraction", "'fractions:Fraction' has no control_bytes, data_overhead"),
    ],
)
def test_what_is_no_transport_is_told(name, says):
    with pytest.raises(ScenarioError) as caught:
        resolve_component("transport", name)
    assert says in str(caught.value)
