"""`python -m tests.mutation`: draws mutants, tries each, and logs what became of it."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.mutation.mutants import draw, sources_of
from tests.mutation.reach import Reach
from tests.mutation.trial import Copy

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["tests/unit", "tests/property", "tests/golden"]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--log", type=Path, required=True, help="one line of JSON per mutant; an existing log is resumed"
    )
    parser.add_argument("--reach", type=Path, help="the tests that reach each line; recorded if there is no such file")
    parser.add_argument("--seconds", type=float, default=120, help="tests that a mutant may survive, in their seconds")
    parser.add_argument("tests", nargs="*", default=TESTS, help=f"tests that are recorded (default: {' '.join(TESTS)})")
    return parser.parse_args(arguments)


def digest() -> str:
    """Return a hash of all that mutants are made of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources_of(ROOT))).hexdigest()[:20]


def read_log(path: Path, head: dict[str, object]) -> dict[int, str]:
    """Return the verdicts of a log by number; begin it if there is none."""
    if not path.exists():
        path.write_text(json.dumps(head) + "\n", encoding="utf-8")
    first, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if first != head:
        sys.exit(f"{path}: is of another seed or of other sources: {first}; expected {head}")
    return {line["number"]: line["verdict"] for line in lines}


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    mutants = draw(ROOT, options.seed, options.count)
    verdicts = read_log(options.log, {"seed": options.seed, "sources": digest()})
    with tempfile.TemporaryDirectory(prefix="gradwire-mutation-") as folder:
        copy = Copy(ROOT, Path(folder))
        reached = (options.reach or options.log.with_suffix(".reach.json")).absolute()
        if not reached.exists():
            copy.record(reached, options.tests)
        reach = Reach.read(reached)
        for number, mutant in enumerate(mutants):
            if number in verdicts:
                continue
            verdict = copy.try_out(mutant, reach.tests_of(mutant, options.seconds))
            verdicts[number] = verdict.verdict
            with options.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"number": number, **asdict(mutant), **asdict(verdict)}) + "\n")
            print(f"{number} {verdict.verdict} {mutant.path}:{mutant.first} {verdict.killer}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(Counter(verdicts.values()).items())))


if __name__ == "__main__":
    main(sys.argv[1:])
