"""Writes the reference parts of docs/scenario.md and docs/sweeps.md from their models, so that they cannot be wrong.

    python docs/reference.py           rewrite both pages below their markers
    python docs/reference.py --check   exit with 1 if it is out of date (test_analysis_docs.py does this)

A key's meaning is the docstring beside its definition; keys whose name says everything are described in `MORE`.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.schema.emulation import Emulation, RealHost
from gradwire.scenarios.schema.exec import Exec, ExecHost, ExecMark
from gradwire.scenarios.schema.fidelity import Fidelity
from gradwire.scenarios.schema.field_docs import description
from gradwire.scenarios.schema.job.job import HostPlacement, Job
from gradwire.scenarios.schema.job.loss_bound import Bound
from gradwire.scenarios.schema.job.parallel import ModelSplit
from gradwire.scenarios.schema.job.training import Optimizer, RandomLoss, ReplayedLosses, Training, UserReducer
from gradwire.scenarios.schema.measurement import Measure
from gradwire.scenarios.schema.network.network import HostTable, Link, LinkOverride, Switch
from gradwire.scenarios.schema.network.port_override import PortOverride
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.schema.policy import Policy, Tagging
from gradwire.scenarios.schema.scenario import Output, Scenario
from gradwire.scenarios.units import UnitError, parse_rate, parse_size, parse_time
from gradwire.studies.sweep.measures import MEASURES
from gradwire.studies.sweep.schema import Axis, Plot, Range, Sample, SweepFile, Variant

FILE, SWEEPS = (Path(__file__).with_name(name) for name in ("scenario.md", "sweeps.md"))
MARKER = "<!-- written by docs/reference.py from here on -->"


def _kinds(table: str, place: str) -> list[tuple[str, type[ScenarioTable]]]:
    """A section for each component of a place."""
    return [(f'{table} kind = "{kind}"', owner) for kind, owner in components(place).items()]


SECTIONS: tuple[tuple[str, type[ScenarioTable]], ...] = (
    ("Top level", Scenario),
    *_kinds("[topology]", "topology"),
    ("[link]", Link),
    ("[[link_override]]", LinkOverride),
    ("[switch]", Switch),
    ("[[switch.override]]", PortOverride),
    ("[host]", HostTable),
    ("[transport] of every kind", Transport),
    *_kinds("[transport]", "transport"),
    ('[transport] kind = "my_module:MyTransport"', UserTransport),
    ("[[job]]", Job),
    *_kinds("[job.exchange]", "exchange"),
    *_kinds("[job.scheduler]", "scheduler"),
    ("[job.placement]", HostPlacement),
    ("[job.parallel]", ModelSplit),
    ("[job.push_bound] and [job.pull_bound]", Bound),
    ("[job.tagging]", Tagging),
    ("[[traffic]] of every kind", TrafficTable),
    *_kinds("[[traffic]]", "traffic"),
    *_kinds("[[fault]]", "fault"),
    ("[[policy]]", Policy),
    ("[output]", Output),
    ("[measure]", Measure),
    ("[emulation]", Emulation),
    ("[[emulation.hosts]]", RealHost),
    ("[exec]", Exec),
    ("[[exec.host]]", ExecHost),
    ("[[exec.mark]]", ExecMark),
    ("[fidelity]", Fidelity),
    ("[training]", Training),
    ("[training.optimizer]", Optimizer),
    ("[training.network]", RandomLoss),
    ("[training.network] of an earlier training", ReplayedLosses),
    *_kinds("[training.reducer]", "reducer"),
    ('[training.reducer] kind = "my_module:MyReducer"', UserReducer),
    *_kinds("[training.system]", "system"),
)

SWEEP_SECTIONS: tuple[tuple[str, type[ScenarioTable]], ...] = (
    ("Top level", SweepFile),
    ("[[axis]]", Axis),
    ("[axis.range]", Range),
    ("[[axis.variant]]", Variant),
    ("[sample]", Sample),
    ("[[plot]]", Plot),
)

MORE: dict[tuple[str, str], str] = {
    ("SweepFile", "name"): "Letters, digits and . _ + - only; part of the default folder's name.",
    ("SweepFile", "description"): "For people.",
    ("SweepFile", "axis"): "See below; any number of them.",
    ("SweepFile", "sample"): "See below.",
    ("SweepFile", "plot"): "See below; any number of them.",
    ("Axis", "values"): "Written as in a scenario; tables are allowed.",
    ("Axis", "range"): "See below.",
    ("Axis", "variant"): "See below; any number of them.",
    ("Range", "low"): "The first value.",
    ("Range", "high"): "The last one.",
    ("Variant", "name"): "For tables and conditions.",
    ("Sample", "count"): "Number of values of each of these ranges.",
    ("Sample", "seed"): "Seed of the drawn values.",
    ("Plot", "font"): "A sans-serif face, or one like Times.",
    ("Plot", "x_scale"): "Default: chosen from the values; for cdf and tail, log.",
    ("Plot", "y_scale"): "Default: linear; for tail, log.",
    ("Plot", "title"): "Above the picture; papers have captions instead.",
    ("Plot", "x_label"): "Replaces the default label of the axis; in lines and pareto plots the unit is appended.",
    ("Plot", "y_label"): "The same for the y axis.",
    ("Plot", "formats"): "One or several of png, pdf, svg.",
    ("Scenario", "name"): "Letters, digits and . _ + - only; Results and their tables carry it.",
    ("Scenario", "description"): "For people.",
    ("Scenario", "topology"): "See below; docs/topologies.md describes every kind.",
    ("Scenario", "link"): "See below.",
    ("Scenario", "link_override"): "See below; any number of them.",
    ("Scenario", "switch"): "See below.",
    ("Scenario", "host"): "See below.",
    ("Scenario", "transport"): "A name, or a table as below.",
    ("Scenario", "job"): "See below; any number of them, at least one if there is no traffic.",
    ("Scenario", "traffic"): "See below; any number of them.",
    ("Scenario", "fault"): "See below; any number of them.",
    ("Scenario", "policy"): "See below; the variants that `gradwire compare` runs.",
    ("Scenario", "output"): "See below.",
    ("Scenario", "emulation"): "See below, and docs/testbed.md.",
    ("Scenario", "exec"): "See below, and docs/exec.md; with it a scenario may do without jobs and traffic.",
    ("Exec", "host"): "See below; any number of them.",
    ("Exec", "mark"): "See below; any number of them.",
    ("Scenario", "fidelity"): "See below; `gradwire fidelity` judges by it, and nothing else depends on it.",
    ("Link", "rate"): "Of each direction.",
    ("LinkOverride", "rate"): "Instead of that of `[link]`.",
    ("LinkOverride", "latency"): "Instead of that of `[link]`.",
    ("LinkOverride", "loss"): "Instead of that of `[link]`.",
    ("Switch", "queues"): "Strict-priority queues per port, 1 to 8; queue 0 is served first.",
    ("Switch", "selective_drop"): "Drop droppable packets above K instead of letting them fill the buffer.",
    ("Switch", "trim_priority"): "The queue of headers.",
    ("Job", "name"): "Letters, digits and . _ + - only.",
    ("Job", "workers"): "Replicas, one per host.",
    ("Job", "start"): "Simulated time at which the job begins.",
    ("Job", "exchange"): "See below; docs/jobs.md describes every kind.",
    ("Job", "parallel"): "See below, and docs/jobs.md.",
    ("Job", "scheduler"): "See below, and docs/jobs.md.",
    ("Job", "tagging"): "See below.",
    ("HostPlacement", "workers"): "Host names, one per worker.",
    ("HostPlacement", "servers"): "Host names, one per server.",
}


VALUES = {
    ("SweepFile", "scenario"): "text or table",
    ("SweepFile", "seeds"): "whole number or list",
    ("SweepFile", "when"): "text or list",
    ("SweepFile", "skip"): "text or list",
    ("Axis", "key"): "text or list",
    ("Axis", "values"): "list",
    ("Axis", "policies"): '`"all"` or list',
    ("Range", "low"): "number or text with a unit",
    ("Range", "high"): "number or text with a unit",
    ("Plot", "formats"): "text or list",
    ("Scenario", "transport"): "name or table",
    ("Job", "placement"): '`"packed"`, `"spread"`, `"random"`, `"rails"` or table',
    ("Job", "transport"): "name or table",
    ("Job", "scheduler"): "name or table",
    ("Job", "push_bound"): "number or table",
    ("Job", "pull_bound"): "number or table",
    ("TrafficTable", "transport"): "name or table",
    ("Training", "reducer"): "table",
    ("Training", "system"): "table",
    ("Training", "network"): '`"simulated"`, `"emulated"`, `"ideal"` or table',
    ("TrafficTable", "hosts"): '`"all"` or list of names',
}


def reference() -> str:
    """The reference as Markdown, one section per table."""
    lines: list[str] = [MARKER, ""]
    for title, model in SECTIONS:
        lines += _section(title, model)
        if model is Tagging:
            lines += [*untagged(), ""]
    return "\n".join(lines).rstrip() + "\n"


def sweep_reference() -> str:
    """That of sweep files, and the list of measures."""
    lines: list[str] = [MARKER, ""]
    for title, model in SWEEP_SECTIONS:
        lines += _section(title, model)
    lines += ["## Measures", "", "Times are picoseconds (`_ps`), shares 0 to 1.", "", "| measure | what |", "|---|---|"]
    lines += [f"| `{name}` | {words} |" for name, words in MEASURES.items()]
    return "\n".join(lines) + "\n"


def _section(title: str, model: type[ScenarioTable]) -> list[str]:
    """One table of a file, and a line for each of its keys."""
    schema = TypeAdapter(model).json_schema()
    lines = [f"### {title}", ""]
    described = " ".join((model.__doc__ or "").split())
    if described and model is not Scenario:
        lines += [*textwrap.wrap(described, 100, break_long_words=False, break_on_hyphens=False), ""]
    if model in (UserTransport, UserReducer):
        return lines
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    component = "kind" in model.model_fields and model not in (Sample, Plot, Optimizer)
    common = next((base for base in (Transport, TrafficTable) if issubclass(model, base)), model)
    for name, field in model.model_fields.items():
        if (name == "kind" and component) or (model is not common and name in common.model_fields):
            continue
        default = "**required**" if field.is_required() else _default(model, name)
        key = field.alias or name
        kind = VALUES.get((model.__name__, name)) or _kind(schema["properties"][key])
        lines.append(f"| `{key}` | {kind} | {default} | {meaning(model, name)} |")
    return [*lines, ""]


def untagged() -> list[str]:
    """What packets are that nobody has tagged, by transport, as their classes say it: a table."""
    lines = [
        "Untagged packets - of traffic, and of jobs without magnitude tagging - are on the wire, and so "
        "for switches:",
        "", "| transport | data | retransmissions of it | acknowledgements and control packets |", "|---|---|---|---|",
    ]  # fmt: skip
    for kind, owner in components("transport").items():
        if owner.simulated:
            data, control = (_class(owner, rule) for rule in ("important", "control_important"))
            again = "important" if owner.repeats_important else data
            lines.append(f"| `{kind}` | {data} | {again} | {control} |")
    lines += [
        "",
        "Important is ECN-capable: marked above a queue's K. Droppable is Not-ECT: never marked, and dropped there "
        "with `selective_drop`; a bound of 0 changes nothing in that. A transport that repeats as important does so "
        "with tagged packets, too. DLCP's Probes are important. On the testbed the kernel's own TCP follows the "
        "kernel's settings.",
    ]
    return lines


def _class(owner: type[Transport], rule: str) -> str:
    """Important or droppable, by one of the rules of a transport."""
    says = getattr(owner, rule, lambda settings: True)  # control packets of which nothing is said
    settings = owner.defaults()
    words = {True: "important", False: "droppable"}
    now = bool(says(settings))
    other = "ecn" in settings and bool(says({**settings, "ecn": not settings["ecn"]}))
    if "ecn" not in settings or other == now:
        return words[now]
    return f"{words[now]}; {words[other]} with `ecn = {str(not settings['ecn']).lower()}`"


def meaning(model: type[ScenarioTable], name: str) -> str:
    """What a key means, in one paragraph. KeyError if nobody has said it."""
    text = description(model, name) or MORE[model.__name__, name]
    return " ".join(text.split()).replace("|", "\\|")


def _default(model: type[ScenarioTable], name: str) -> str:
    """The default as a file would have it."""
    field = model.model_fields[name]
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, ScenarioTable):
        return '"dctcp"' if isinstance(value, Transport) else "see below"
    # Serialised by the field's own rules, which write units.
    described = typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    written = TypeAdapter(described).dump_python(value, mode="json")
    return "none" if written in ([], {}) else _toml(written)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, (list, tuple)):
        return "`[" + ", ".join(_toml(entry).strip("`") for entry in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _kind(schema: dict[str, Any]) -> str:
    """What may stand there, in words."""
    for place in ("load_balancing", "queue"):
        if schema.get("examples") == list(components(place)):
            return ", ".join(f'`"{name}"`' for name in components(place)) + ' or `"module:Class"`'
    choices = schema.get("enum")
    if choices:
        return " or ".join(_toml(choice) for choice in choices)
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(_kind(option) for option in options))
    if schema.get("type") == "string" and schema.get("examples"):
        return _quantity(schema["examples"][0])
    if schema.get("type") == "array":
        inner = _kind(schema.get("items", {}))
        return "tables" if inner == "table" else f"list of: {inner}"
    if "$ref" in schema or "oneOf" in schema or "allOf" in schema or schema.get("type") == "object":
        return "table"
    words = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "string": "text"}
    return words.get(str(schema.get("type")), "value")


def _quantity(example: str) -> str:
    """The kind of a quantity, told by its example."""
    for word, parse in (("time", parse_time), ("size", parse_size), ("rate", parse_rate)):
        with contextlib.suppress(UnitError):
            parse(example)
            return f'{word}, `"{example}"`'
    return "text"


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or with --check only say whether they are up to date."""
    stale = 0
    for file, made in ((FILE, reference()), (SWEEPS, sweep_reference())):
        text = file.read_text(encoding="utf-8")
        fresh = text.split(MARKER)[0] + made
        stale += fresh != text
        if "--check" not in arguments:
            file.write_text(fresh, encoding="utf-8")
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
