"""What differs between the scenarios of Results that are compared, besides what their policies are about.

A comparison is of policies: transports, load balancing, switches and how a job exchanges what it has. Where network,
jobs or traffic are others, the figures tell of that as well, and a reader should know. Compared is what each Result
holds of its scenario, and the digests of traces and files, which tell those of one name apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.result import Result

JOB = {
    "trace": "trace", "phase": "phase", "iterations": "iterations", "workers": "workers", "servers": "servers",
    "compute_scale": "compute_scale", "start": "start", "jitter": "jitter", "placement": "placement",
}  # fmt: skip
"""Keys of a job that make it another one, and what it has without them: `DEFAULTS`."""
DEFAULTS = {"iterations": 5, "servers": 0, "compute_scale": 1.0}
WHOLE = {"seed": "seed", "duration": "duration", "host": "hosts", "measure": "measured window"}
"""Keys of the scenario itself."""
PLACES = {"topology": "topology", "link": "links", "link_override": "links", "traffic": "traffic", "fault": "faults"}
"""Tables of a scenario that are compared as a whole, and what people call them."""


def differences(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """What is of another network, other jobs or other traffic than the first: a sentence for all that differ alike.

    Parameters
    ----------
    names : what each Result is called.
    """
    tables = [result.tables for result in results]
    if any(tables) and not tables[0]:
        return [f"{names[0]} holds no scenario: whether the others differ from it in more than policy is not known"]
    found: dict[str, list[str]] = {}
    for number in range(1, len(results)):
        if any(tables) and not tables[number]:
            sentence = "no scenario: whether there is more to it than policy is not known"
            found.setdefault(sentence, []).append(names[number])
            continue
        parts = list(_differing(tables[0], tables[number]))
        named = any(part.startswith(("trace of job", "jobs ", "phase of job")) for part in parts)
        if not named and results[0].summary.get("trace_hash") != results[number].summary.get("trace_hash"):
            parts.append("a trace of the same name has another content")
        parts += [
            f"the file of {place} has another content"
            for place, digest in results[number].summary.get("inputs", {}).items()
            if results[0].summary.get("inputs", {}).get(place, digest) != digest
        ]
        if parts:
            found.setdefault("; ".join(parts), []).append(names[number])
    return [_sentence(others, names[0], what) for what, others in found.items()]


def _sentence(others: Sequence[str], first: str, what: str) -> str:
    one = len(others) == 1
    who = others[0] if one else f"{', '.join(others[:-1])} and {others[-1]}"
    if what.startswith("no scenario"):
        return f"{who} {'holds' if one else 'hold'} {what}"
    return f"{who} {'differs' if one else 'differ'} from {first} in more than policy: {what}"


def _differing(first: JsonView, other: JsonView) -> Iterator[str]:
    for table in dict.fromkeys(PLACES.values()):
        keys = [key for key, words in PLACES.items() if words == table]
        one, two = ({key: given[key] for key in keys if key in given} for given in (first, other))
        if one != two:
            yield f"{table} ({_apart(one, two)})"
    for key, words in WHOLE.items():
        if first.get(key) != other.get(key):
            yield f"{words} ({_words(other.get(key))}, not {_words(first.get(key))})"
    jobs, others = ({str(job.get("name")): job for job in given.get("job", [])} for given in (first, other))
    if list(jobs) != list(others):
        yield f"jobs ({', '.join(others) or 'none'}, not {', '.join(jobs) or 'none'})"
    for name in [name for name in jobs if name in others]:
        for key, words in JOB.items():
            one, two = (each.get(key, DEFAULTS.get(key)) for each in (jobs[name], others[name]))
            if one != two:
                yield f"{words} of job {name} ({_words(two)}, not {_words(one)})"


def _apart(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """Return in words what tables of two scenarios have, the other's first.

    Of lists of tables with the same names only the keys that differ are said.
    """
    said, others = _words(two), _words(one)
    if said != others:
        return f"{said}, not {others}"
    found = [part for key in two for part in _keys_apart(one.get(key), two[key])]
    return "; ".join(found) or said


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
    """Return the words of a key's value, in braces if it is a table."""
    return f"{{{_words(value)}}}" if isinstance(value, Mapping) else _words(value)


def _called(value: object) -> str:
    """Return the name or kind of a table of a list, or what is in it; anything else as it is."""
    if not isinstance(value, Mapping):
        return str(value)
    return str(value.get("name", value.get("kind", _value(value))))


def _words(value: object) -> str:
    """A value on one line, as short as it can be said."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(next(iter(value.values())), Mapping | list):
            return _words(next(iter(value.values())))
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return " and ".join(_called(each) for each in value) or "none"
    return str(value)
