"""`python -m tests.soak`: run the sources of random cases until the time is up, count, and say what failed."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence

from tests.soak import runner


def again(label: str) -> int:
    """Run one case by its label, "SOURCE REST", and print its answer. ValueError if there is no such source or case."""
    name, _, rest = label.partition(" ")
    if name not in runner.SOURCES:
        raise ValueError(f"no source {name!r}; expected one of {', '.join(runner.SOURCES)}, and a case of it")
    source = importlib.import_module(f"tests.soak.{name}")
    example = next(iter(source.cases(1)))[0]
    if _shape(label) != _shape(example):
        raise ValueError(f"no case {label!r}; expected such as {example!r}")
    print(source.one(rest))
    return 0


def _shape(label: str) -> tuple[int, int]:
    return len(label.split()), label.count(":")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit status 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument(
        "--only", action="append", choices=runner.SOURCES, help="one source; may be given again (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="other cases for every seed (default: the time)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as processors)"
    )
    parser.add_argument("--log", default="soak-failures.txt", help="file that failures are added to")
    parser.add_argument("--case", metavar="LABEL", help="run one case again, such as 'scenarios 12:3'")
    given = parser.parse_args(arguments)
    if given.case is not None:
        try:
            return again(given.case)
        except ValueError as error:
            parser.error(f"--case: {error}")
    totals = runner.run(given.only or runner.SOURCES, given.minutes, given.seed, given.jobs, given.log)
    print(f"seed {given.seed}")
    for name, tally in totals.items():
        print(tally.line(name))
        if tally.coverage is not None:
            print("of those, compared packet by packet with the oracle:", *tally.coverage.lines(), sep="\n")
    failed = sum(len(tally.failures) for tally in totals.values())
    if failed:
        print(f"{failed} failed: see {given.log}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
