"""Write `tests/slow_tests.txt`, the tests that `make test` leaves to `make test-full`.

    python -m pytest --junitxml=times.xml ... ; python -m tests.slow_tests times.xml

A function of tests is slow if one of its cases takes more than `LIMIT_S`. Property tests are never listed: `make test`
runs them with fewer examples.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_suffix(".txt")
LIMIT_S = 1.7


def listed_tests() -> frozenset[str]:
    """Return the functions that are slow, as "tests/unit/x/test_y.py::test_z"."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def longest_times(report: Path) -> dict[str, float]:
    """Return the seconds of the longest case of each function in a JUnit report, property tests aside."""
    longest: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        parts = (case.get("classname") or "").split(".")
        module = next((n for n, part in enumerate(parts) if part.startswith("test_")), None)
        if module is None or parts[1] == "property":
            continue
        names = [*parts[module + 1 :], (case.get("name") or "").split("[")[0]]
        function = "::".join(["/".join(parts[: module + 1]) + ".py", *names])
        longest[function] = max(longest[function], float(case.get("time") or 0))
    return longest


def slow_functions(report: Path, limit_s: float = LIMIT_S) -> list[str]:
    """Return the slow functions, sorted: those of the report, and listed ones that the report does not measure."""
    longest = longest_times(report)
    return sorted({name for name, seconds in longest.items() if seconds > limit_s} | (listed_tests() - longest.keys()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.slow_tests JUNIT_REPORT")
    LIST.write_text("".join(f"{name}\n" for name in slow_functions(Path(sys.argv[1]))), encoding="utf-8")
