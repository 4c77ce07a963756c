"""TOML that no scenario has is refused before it is parsed; what scenarios have is read as `tomllib` reads it."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest
from output_cases import ROOT

from gradwire.scenarios.errors import MAX_LINE_LENGTH, Mistake, ScenarioError, truncate_middle
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.scenarios.loading.toml import MOST_BRACKETS, MOST_PARTS, read_toml

LIBRARY = sorted((ROOT / "scenarios" / "library").rglob("*.toml"))


@pytest.mark.parametrize("path", LIBRARY, ids=[each.stem for each in LIBRARY])
def test_read_toml_equals_tomllib_on_library(path: Path):
    text = path.read_text(encoding="utf-8")
    assert read_toml(text) == tomllib.loads(text)


DOTS = ".a" * 1000


@pytest.mark.parametrize(
    "text",
    [
        f'x = "{DOTS}"\ny = 1', f"x = '{DOTS}'", f'x = """\n{DOTS}\n"""\ny = 1', f"x = '''\n{DOTS}'''", f"# {DOTS}\nx = 1",
        f'"{DOTS}" = 1', f"'{DOTS}'.b = 1", 'x = "a\\"b' + DOTS + '"', f'x = "#" # {DOTS}', "x = [" + "{}, [], " * 1000 + "]",
        ".".join(["a"] * MOST_PARTS) + " = 1", "[" + " . ".join(["'a'"] * MOST_PARTS) + "]",
        "x = " + "[" * 90 + "]" * 90, 'x = """' + "[{" * MOST_BRACKETS + '"""',
    ],
)  # fmt: skip
def test_strings_and_comments_do_not_count_towards_limits(text: str):
    assert read_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".".join(["a"] * 200_000) + " = 1", "a dotted key has more than 64 parts (at line 1)"),
        ("x = 1\n[" + ".".join(['"a"'] * 200_000) + "]", "a dotted key has more than 64 parts (at line 2)"),
        ("x = {" + ".".join(["a"] * (MOST_PARTS + 1)) + " = 1}", "a dotted key has more than 64 parts (at line 1)"),
        ("".join(f"[x{n}]\n" for n in range(700_000)), "there are more than 100,000 tables and lists"),
        ("x = [" + "{}," * 700_000 + "]", "there are more than 100,000 tables and lists"),
        ("x = " + "[" * 5000, "too deeply nested brackets"),
    ],
)
def test_oversized_toml_is_rejected_quickly(tmp_path: Path, text: str, words: str):
    (tmp_path / "long.toml").write_text(text)
    began = time.process_time()
    with pytest.raises(ScenarioError) as raised:
        load_scenario(tmp_path / "long.toml")
    assert time.process_time() - began < 2
    assert str(raised.value) == f"{tmp_path}/long.toml: is not TOML: {words}; expected key = value lines and [tables]"


def test_long_error_lists_are_truncated_with_a_count():
    with pytest.raises(ScenarioError) as raised:
        build_scenario({"name": "x", "topology": {"kind": "star", "hosts": 3}} | {f"a{n}": 1 for n in range(3000)})
    lines = str(raised.value).splitlines()
    assert len(lines) == 202 and lines[-1].endswith("the first of 2,800 more errors")


def test_user_text_in_errors_is_truncated(tmp_path: Path):
    assert truncate_middle("abcdefghij", 10) == "abcdefghij" and truncate_middle("abcdefghijk", 9) == "abc...ijk"
    long = "x" * 100_000
    (tmp_path / "bad.edges").write_text(f"h0 s0\nh1 s0 {{{long}\n")
    from gradwire.topology.cables import LinkSpec
    from gradwire.topology.kinds.graph import read_graph

    with pytest.raises(ScenarioError) as raised:
        read_graph(tmp_path / "bad.edges", LinkSpec(10**11, 10**6))
    assert len(str(raised.value)) < 400
    for error in (
        ScenarioError(long, "a"),
        ScenarioError("a", long),
        ScenarioError("a", "b", mistakes=[Mistake(long, "is wrong")]),
    ):
        assert max(map(len, str(error).splitlines())) <= MAX_LINE_LENGTH
        assert max(map(len, error.as_dict()["what"].splitlines())) <= MAX_LINE_LENGTH
