"""`scenario_differences` describes in sentences how the scenarios of compared Results differ in network, jobs or
traffic, policies aside.

Policies are transports, load balancing, switches and the exchange of a job. If network, jobs or traffic differ too,
the figures reflect that as well, and a reader should know. The comparison uses the scenario in each Result, and the
digests of traces and files, which distinguish those of one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradwire.result_store.result import Result
from gradwire.scenarios.json_data import JsonView

JOB_KEYS = "trace phase iterations workers servers compute_scale start jitter placement".split()
"""Keys that identify a job's work; without a key: `DEFAULTS`."""
DEFAULTS = {"iterations": 5, "servers": 0, "compute_scale": 1.0}
SCENARIO_KEYS = {"seed": "seed", "duration": "duration", "host": "hosts", "measure": "measured window"}
"""Keys of the scenario itself."""
TABLE_KEYS = {"topology": ["topology"], "links": ["link", "link_override"], "traffic": ["traffic"], "faults": ["fault"]}
"""Tables of a scenario that are compared as a whole, by their labels."""


def scenario_differences(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Return sentences on networks, jobs or traffic unlike the first Result's, one for all with the same difference.

    names : of the Results.
    """
    tables = [result.tables for result in results]
    if any(tables) and not tables[0]:
        return [f"{names[0]} holds no scenario: differences other than policy are unknown"]
    names_by_difference: dict[str, list[str]] = {}
    for number in range(1, len(results)):
        if any(tables) and not tables[number]:
            sentence = "no scenario: differences other than policy are unknown"
            names_by_difference.setdefault(sentence, []).append(names[number])
            continue
        parts = list(_differing(tables[0], tables[number]))
        named = any(part.startswith(("trace of job", "jobs ", "phase of job")) for part in parts)
        if not named and results[0].summary.get("trace_hash") != results[number].summary.get("trace_hash"):
            parts.append("a trace of the same name has different content")
        parts += [
            f"the file of {path} has different content"
            for path, digest in results[number].summary.get("inputs", {}).items()
            if results[0].summary.get("inputs", {}).get(path, digest) != digest
        ]
        if parts:
            names_by_difference.setdefault("; ".join(parts), []).append(names[number])
    return [_sentence(others, names[0], what) for what, others in names_by_difference.items()]


def _sentence(others: Sequence[str], first: str, what: str) -> str:
    one = len(others) == 1
    subject = others[0] if one else f"{', '.join(others[:-1])} and {others[-1]}"
    if what.startswith("no scenario"):
        return f"{subject} {'holds' if one else 'hold'} {what}"
    return f"{subject} {'differs' if one else 'differ'} from {first} in more than policy: {what}"


def _differing(first: JsonView, other: JsonView) -> Iterator[str]:
    for table, keys in TABLE_KEYS.items():
        one, two = ({key: tables[key] for key in keys if key in tables} for tables in (first, other))
        if one != two:
            yield f"{table} ({_apart(one, two)})"
    for key, words in SCENARIO_KEYS.items():
        if first.get(key) != other.get(key):
            yield f"{words} ({_words(other.get(key))}, not {_words(first.get(key))})"
    jobs, others = ({str(job.get("name")): job for job in tables.get("job", [])} for tables in (first, other))
    if list(jobs) != list(others):
        yield f"jobs ({', '.join(others) or 'none'}, not {', '.join(jobs) or 'none'})"
    for name in [name for name in jobs if name in others]:
        for key in JOB_KEYS:
            one, two = (job.get(key, DEFAULTS.get(key)) for job in (jobs[name], others[name]))
            if one != two:
                yield f"{key} of job {name} ({_words(two)}, not {_words(one)})"


def _apart(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """Describe how tables of two scenarios differ, the other's first. For lists of tables with the same names, only the
    differing keys are named."""
    text, others = _words(two), _words(one)
    if text != others:
        return f"{text}, not {others}"
    differing_keys = [part for key in two for part in _keys_apart(one.get(key), two[key])]
    return "; ".join(differing_keys) or text


def _keys_apart(one: Any, two: Any) -> Iterator[str]:
    """Yield "name: key value, not value" for each key in which tables of the same name differ."""
    if not (isinstance(one, list) and isinstance(two, list)):
        return
    for first, other in zip(one, two, strict=False):
        if not (isinstance(first, Mapping) and isinstance(other, Mapping)) or first == other:
            continue
        name = _words([other])
        for key in dict.fromkeys([*first, *other]):
            if first.get(key) != other.get(key):
                yield f"{name}: {key} {_value(other.get(key))}, not {_value(first.get(key))}"


def _value(value: object) -> str:
    """Return a key's value as text, in braces if it is a table."""
    return f"{{{_words(value)}}}" if isinstance(value, Mapping) else _words(value)


def _called(value: object) -> str:
    """Return the name or kind of a table of a list, or else its content; any other value as text."""
    if not isinstance(value, Mapping):
        return str(value)
    return str(value.get("name", value.get("kind", _value(value))))


def _words(value: object) -> str:
    """Return a value as short text on one line."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(next(iter(value.values())), Mapping | list):
            return _words(next(iter(value.values())))
        return ", ".join(f"{key} {_words(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list):
        return " and ".join(_called(entry) for entry in value) or "none"
    return str(value)
