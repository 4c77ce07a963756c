"""Which keys of a scenario, and which pairs of them, random scenarios have had that engine and oracle agreed on.

A feature is a key of the schema where it stands for a number or a name ("switch.buffer"), a key with its value where there
is a choice ("transport.dctcp.timers=ticks", "switch.pfc=True", "topology=rail"), and a count at its least or above it
("host.gpus>1"). The features come from the JSON Schema, so a new key is missing from the table until something draws it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tests.soak.schema import SCHEMA

NOT_DRAWN = {
    "name": "a name", "description": "a text", "modules": "user code", "policy": "several scenarios in one",
    "emulation": "testbed", "exec": "testbed", "fidelity": "testbed", "training": "trained, not simulated alone",
    "transport=bbr": "kernel only", "job.replay": "needs a training run",
    "measure": "statistics after the run",
    "exchange.hierarchical.group=1": "refused", "exchange.fsdp.group=1": "refused", "parallel.pipeline>1": "refused",
}  # fmt: skip
"""Key or choice -> why no packet depends on it in the simulator, or why it is not drawn."""
MOST_NAMED = 20  # features that are missing
KINDS = ("topology", "transport", "traffic", "fault", "exchange", "scheduler")


class Features:
    """The features of the schema.

    Attributes
    ----------
    names : all of them, sorted.
    index : name -> number.
    """

    def __init__(self, schema: Mapping[str, Any] = SCHEMA) -> None:
        self._defs = schema["$defs"]
        self._known: set[str] = set()
        self._least: dict[str, float] = {}
        self._visited: set[tuple[str, str]] = set()
        self._table("", schema)
        self._known -= NOT_DRAWN.keys()
        self.names = sorted(self._known)
        self.index = {name: number for number, name in enumerate(self.names)}

    def of(self, tables: Mapping[str, Any]) -> set[str]:
        """Return the features of a scenario, as `tomllib` would return it."""
        return {name for name in self._walk("", tables) if name in self._known}

    def _walk(self, label: str, table: Mapping[str, Any]) -> Iterator[str]:
        for field, value in table.items():
            for each in value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]:
                key = f"{label}.{field}" if label else field
                if isinstance(each, dict):
                    kind = each.get("kind") if field in KINDS else None
                    if kind is not None:
                        yield f"{field}={kind}"
                        yield from self._walk(f"{field}.{kind}", {k: v for k, v in each.items() if k != "kind"})
                    else:
                        yield key
                        yield from self._walk(field, each)
                elif key in self._least:
                    yield f"{key}>{self._least[key]}" if each > self._least[key] else f"{key}={self._least[key]}"
                elif isinstance(each, (str, bool, int)) and f"{key}={each}" in self._known:
                    yield f"{key}={each}"
                elif field in KINDS and isinstance(each, str):
                    yield f"{field}={each}"
                else:
                    yield key

    def _table(self, label: str, model: Mapping[str, Any]) -> None:
        """Note the features of one model, and of those that its fields refer to."""
        for field, what in model.get("properties", {}).items():
            key = f"{label}.{field}" if label else field
            if field == "kind" or key in NOT_DRAWN or field == "name":
                continue
            self._field(field, key, what)

    def _field(self, field: str, key: str, what: Mapping[str, Any]) -> None:
        if "$ref" in what:
            self._model(field, key, what["$ref"].rsplit("/", 1)[1])
        elif "oneOf" in what or "anyOf" in what:
            for option in what.get("oneOf", what.get("anyOf")):
                self._field(field, key, option)
        elif what.get("type") == "array" and "$ref" in str(what.get("items")):
            self._field(field, key, what["items"])
        elif "enum" in what or "const" in what:
            self._known |= {f"{key}={value}" for value in what.get("enum", [what.get("const")])}
        elif what.get("type") == "boolean":
            self._known |= {f"{key}=False", f"{key}=True"}
        elif what.get("type") == "integer" and "minimum" in what and f"{what['minimum']}" in "01":
            self._least[key] = what["minimum"]
            self._known |= {f"{key}={what['minimum']}", f"{key}>{what['minimum']}"}
        elif what.get("type") == "string" and field == "load_balancing":
            self._known |= {f"{key}={kind}" for kind in what["examples"]}
        elif (what.get("type") == "string" and field in KINDS) or what.get("type") == "null":
            return
        else:
            self._known.add(key)

    def _model(self, field: str, key: str, name: str) -> None:
        model = self._defs[name]
        kind = model.get("properties", {}).get("kind", {}).get("const") if field in KINDS else None
        if f"{field}={kind}" in NOT_DRAWN or name.startswith("User"):
            return
        label = f"{field}.{kind}" if kind else field
        self._known.add(f"{field}={kind}" if kind else key)
        if (label, name) not in self._visited:
            self._visited.add((label, name))
            self._table(label, model)


class Coverage:
    """Counts of features, and of pairs of them, in scenarios.

    Attributes
    ----------
    pairs : int64[features, features], symmetric; the diagonal counts scenarios with the feature.
    scenarios : how many there were.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.pairs = np.zeros((len(features.names), len(features.names)), dtype=np.int64)
        self.scenarios = 0

    def note(self, tables: Mapping[str, Any]) -> None:
        """Count one scenario."""
        which = [self.features.index[name] for name in self.features.of(tables)]
        self.pairs[np.ix_(which, which)] += 1
        self.scenarios += 1

    def add(self, other: Coverage) -> None:
        """Add the counts of another process."""
        self.pairs += other.pairs
        self.scenarios += other.scenarios

    def missing(self) -> list[str]:
        """Return the features of no scenario."""
        return [name for name, count in zip(self.features.names, self.pairs.diagonal(), strict=True) if not count]

    def lines(self) -> list[str]:
        """Return the table for people: groups of features, how many were drawn, and the rarest."""
        names, counts = self.features.names, self.pairs.diagonal()
        groups = sorted({group_of(name) for name in names})
        member = np.array([groups.index(group_of(name)) for name in names])
        possible = excludes(names)
        upper = np.triu(~possible, 1)
        lines = [
            f"{self.scenarios:,} scenarios; {int((counts > 0).sum()):,} of {len(names):,} features; "
            f"{int((self.pairs[upper] > 0).sum()):,} of {int(upper.sum()):,} pairs (features that are never together in a "
            "valid scenario included)",
            f"{'group':<16} {'features':>9} {'drawn':>7} {'rarest, times':>14} {'pairs':>9} {'drawn':>7}",
        ]
        for number, group in enumerate(groups):
            mine = member == number
            with_mine = (mine[:, None] | mine[None, :]) & upper
            lines.append(
                f"{group:<16} {int(mine.sum()):>9,} {int((counts[mine] > 0).sum()):>7,} {int(counts[mine].min()):>14,} "
                f"{int(with_mine.sum()):>9,} {(self.pairs[with_mine] > 0).mean():>7.0%}"
            )
        missing = self.missing()
        if missing:
            more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
            lines.append(f"never: {', '.join(missing[:MOST_NAMED])}{more}")
        return lines


def group_of(name: str) -> str:
    """Return the table that a feature belongs to."""
    return name.split("=")[0].split(">")[0].split(".")[0]


def excludes(names: list[str]) -> np.ndarray:
    """Return bool[features, features]: True for two that one scenario cannot have both, by the shape of its tables.

    These are two values of a key of a table of which there is one, and anything of two topologies.
    """
    single = {"topology", "load_balancing", "switch", "host", "link", "output", "seed", "duration"}
    keys = [name.split("=")[0].split(">")[0] for name in names]
    kinds = [
        key.split(".")[1] if key.startswith("topology.") else name.partition("=")[2]
        for key, name in zip(keys, names, strict=True)
    ]
    found = np.zeros((len(names), len(names)), dtype=bool)
    for i, one in enumerate(names):
        for j in range(i):
            both = {group_of(one), group_of(names[j])}
            if both == {"topology"}:
                found[i, j] = kinds[i] != kinds[j] or keys[i] == keys[j]
            elif keys[i] == keys[j] and both <= single:
                found[i, j] = True
    return found | found.T | np.eye(len(names), dtype=bool)


def main() -> int:
    """Draw scenarios without playing them, and print what they have."""
    from tests.soak.drawn import accepted

    parser = argparse.ArgumentParser(prog="python -m tests.soak.coverage", description=main.__doc__)
    parser.add_argument("--scenarios", type=int, default=2000, help="how many (default: 2000)")
    count = parser.parse_args().scenarios
    coverage = Coverage(Features())
    for _, tables in zip(range(count), accepted(), strict=False):
        coverage.note(tables)
    print("\n".join(coverage.lines()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
