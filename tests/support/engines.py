"""Engines of tests: few are compiled, which all tests share; the others run as plain Python, with the same results.

`tests/engines.toml` lists the combinations of components whose engines `make test` compiles, and the modules and folders
whose tests compile whatever they run. No other engine is compiled. It has one thread then, so a test that is about threads
fails.
"""

from __future__ import annotations

import functools
import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.sim.engine.specialization import Combination

LIST = Path(__file__).parents[1] / "engines.toml"
MODE = "GRADWIRE_TEST_ENGINES"
"""Names the environment variable: "plain" compiles no engine, "few" those of the list, "all" all."""
CANONICAL = "canonical"


@functools.cache
def listed_engines() -> dict[str, str]:
    """Return the reasons of the list by combination (`key_of`)."""
    return {key_of(table): table["reason"] for table in _tables()["engine"]}


@functools.cache
def listed_places() -> dict[str, str]:
    """Return the modules and folders of tests that compile any engine, with the reason."""
    return {place: table["reason"] for table in _tables()["tests"] for place in table["places"]}


def _tables() -> dict[str, Any]:
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def key_of(names: Any) -> str:
    """Return a text for a combination from the names of its components and features (`Combination.names`)."""
    return json.dumps([names[field] for field in ("transports", "load_balancing", "queues", "features")])


def is_listed(combination: Combination, test: str) -> bool:
    """Return True if a test, such as "tests/unit/x/test_y.py::test_z", may compile an engine."""
    module = test.split("::")[0]
    places = (module, *map(str, Path(module).parents))
    return key_of(combination.names()) in listed_engines() or any(place in listed_places() for place in places)


def check_threads(threads: int, combination: Combination, test: str) -> None:
    """Raise AssertionError if a test is about threads, which an engine of plain Python has not."""
    if threads > 1 and "thread" in test.split("::")[-1]:
        names = json.dumps(combination.names())
        raise AssertionError(f"a test of threads compiles an engine that {LIST.name} does not list: {names}")


def install() -> None:
    """Apply the mode to all engines that this process builds from now on."""
    mode = os.environ.get(MODE, "all")
    if mode == "all":
        return
    from gradwire.scenarios.errors import GradwireError
    from gradwire.sim.engine import specialization
    from gradwire.sim.engine.fabric import Fabric

    build, compile_them = Fabric.__init__, specialization._compile

    def is_compiled(combination: Combination) -> bool:
        return mode == "few" and is_listed(combination, present_test())

    def is_plain(options: dict[str, Any]) -> bool:
        if mode == "plain":
            return True
        switch = options["switch"]
        features = specialization.features_of(switch, options.get("faults", False), options.get("delays", False))
        try:
            combination = specialization.make_combination(
                options["transports"], options.get("balancing", "ecmp"), switch, options.get("folder"), features
            )
        except GradwireError:
            return False  # it is raised again
        if is_compiled(combination):
            return False
        check_threads(options.get("threads", 1), combination, present_test())
        return True

    @functools.wraps(build)
    def build_plain(self: Fabric, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options | ({"compiled": False} if is_plain(options) else {}))

    @functools.wraps(compile_them)
    def compile_listed(combinations: Iterable[Combination], jobs: int | None = None) -> dict[str, float]:
        return compile_them([each for each in combinations if is_compiled(each)], jobs)

    Fabric.__init__ = build_plain  # type: ignore[method-assign]
    specialization._compile = compile_listed


def present_test() -> str:
    """Return the name of the test that runs, in this process or in one of its own; empty before the first."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
