"""`Scenario` declares the complete input of a run as frozen pydantic models, with variants, paths and digest.

Components chosen by name (topology, transport, exchange, traffic, fault) have a model per kind, found by
`gradwire.scenarios.loading.registry`; the modules of the base classes define what all kinds share.

Each model checks itself; `gradwire.scenarios.validation.scenario` holds the cross-table checks, such as more workers
than hosts. Read files with `gradwire.scenarios.loading.load.load_scenario`, which reports every mistake at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.registry import components, is_known_kind
from gradwire.scenarios.loading.toml import write_toml
from gradwire.scenarios.schema.base import Flag, Mistakes, ScenarioTable
from gradwire.scenarios.schema.effect_conditions import (
    PACKETS,
    SEVERAL_PATHS,
    SEVERAL_SWITCHES,
    Precondition,
    TableContext,
)
from gradwire.scenarios.schema.emulation import Emulation
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.fidelity import Fidelity
from gradwire.scenarios.schema.field_docs import describe
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.job.loss_bound import largest_bound_of_sender
from gradwire.scenarios.schema.job.training import Training
from gradwire.scenarios.schema.kinds import ComponentByKind, examples
from gradwire.scenarios.schema.measurement import Measure
from gradwire.scenarios.schema.network.fault import Fault
from gradwire.scenarios.schema.network.network import HostTable, Link, LinkOverride, Switch
from gradwire.scenarios.schema.network.tcp_rules import with_kernel_rules
from gradwire.scenarios.schema.network.topology import TopologyTable
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.schema.network.transport import AnyTransport, default_transport
from gradwire.scenarios.schema.policy import Policy, overlay, unknown_policy_error
from gradwire.scenarios.units import PositiveTime, UnitError, format_time
from gradwire.scenarios.validation import scenario as checks
from gradwire.scenarios.validation.argument_checks import require_instance

AnyTopology = Annotated[TopologyTable, ComponentByKind("topology")]
AnyTraffic = Annotated[TrafficTable, ComponentByKind("traffic")]
AnyFault = Annotated[Fault, ComponentByKind("fault")]


def _balancer(value: Any) -> str:
    if not isinstance(value, str) or not is_known_kind("load_balancing", value):
        known = components("load_balancing")
        expected = f'{", ".join(known)} or "my_module:MyBalancer"{nearest(str(value), known)}'
        raise UnitError("is not a load balancer", expected)
    return value


SHORTEST_PERIOD = 1000
"""Minimum picoseconds between two samples of queues."""


OF_RUNS = Precondition(lambda at: not at.is_trained(), "a training run records no packets or queues", "gradwire run")


def _may_miss(at: TableContext) -> bool:
    """Return True if a message may be delivered without all of its bytes."""
    return (
        at.is_trained()
        or not at.scenario.senders
        or any(":" in transport.kind or largest_bound_of_sender(sender) > 0 for sender, transport in at.carried())
    )


class Output(ScenarioTable):
    """Optional records of a run beyond its tables."""

    packet_log: Annotated[Flag | tuple[str, ...], OF_RUNS] = False
    """Every transmission of every packet, or of the jobs and traffic named; for small networks only."""
    queue_samples: Annotated[PositiveTime | None, OF_RUNS] = None
    """Interval between samples of the bytes queued at and sent by ports; none if absent. At least 1 ns, less than the
    smallest packet takes on a link of 400 Gbps."""
    sample_ports: tuple[str, ...] | None = None
    """Sampled ports such as "leaf0->h3", or nodes for all their ports. All ports of all switches if absent."""
    delays: Flag = False
    """Count packets' queueing delays at every port."""
    missing: Annotated[
        Flag,
        Precondition(
            _may_miss, "every message arrives whole", "job.push_bound, job.pull_bound or traffic.bound above 0"
        ),
    ] = True
    """Record the missing packets of messages that are delivered without all of their bytes."""

    def conflicts(self) -> Iterator[Mistake]:
        if self.queue_samples is not None and self.queue_samples < SHORTEST_PERIOD:
            what = "is shorter than any packet"
            yield Mistake("queue_samples", what, format_time(self.queue_samples), "at least 1ns")
        if self.sample_ports is not None and self.queue_samples is None:
            yield Mistake("sample_ports", "has no effect", list(self.sample_ports), "queue_samples as well")


class Scenario(ScenarioTable):
    """One experiment. Equal scenarios, traces and versions give equal Results, byte for byte."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 1
    """Seed of everything random."""
    duration: PositiveTime | None = None
    """Simulated time after which the run ends even if jobs or flows are unfinished."""
    modules: Annotated[str, Field(min_length=1)] | None = None
    """Folder of the modules that are named as "module:Class"; that of the scenario file if absent."""
    topology: AnyTopology
    link: Annotated[Link, PACKETS] = Link()
    link_override: Annotated[tuple[LinkOverride, ...], PACKETS] = ()
    switch: Annotated[Switch, PACKETS] = Switch()
    host: HostTable = HostTable()
    load_balancing: Annotated[
        str,
        BeforeValidator(_balancer),
        Field(json_schema_extra=examples("load_balancing")),
        SEVERAL_PATHS,
        SEVERAL_SWITCHES,
        PACKETS,
    ] = "ecmp"
    """Choice among the shortest paths: by flow hash (weighted: in proportion to the links' rates), packet by packet
    (spray, least_queue), burst by burst (flowlet), or by the sending host, packet by packet (source routes;
    entropies in turn, oblivious, without congested ones, bitmap, or those of delivered packets again, reps and
    mixed)."""
    transport: Annotated[
        AnyTransport,
        Precondition(
            lambda at: not at.scenario.senders or any(each.transport is None for each in at.scenario.senders),
            "every job and traffic names its own transport",
            "a job or traffic without one",
        ),
    ] = default_transport()
    job: tuple[Job, ...] = ()
    traffic: tuple[AnyTraffic, ...] = ()
    fault: tuple[AnyFault, ...] = ()
    policy: tuple[Policy, ...] = ()
    output: Output = Output()
    measure: Measure = Measure()
    """Window of the run that traffic's figures cover; the run itself does not depend on it."""
    emulation: Emulation = Emulation()
    exec: Exec | None = None
    """Options for user programs across this network (`gradwire exec`)."""
    fidelity: Fidelity = Fidelity()
    training: Training | None = None
    """The model that `gradwire train` trains over this network."""

    _applied: Policy | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)
    _file: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _check_whole(self) -> Scenario:
        mistakes = checks.find_mistakes(self)
        for policy in self.policy if not mistakes else ():
            mistakes.extend(checks.find_policy_mistakes(self, policy))
        if mistakes:
            raise Mistakes(mistakes)
        return self

    def with_kernels_tcp(self) -> Scenario:
        """Return the scenario with TCP by the kernel's rules where the testbed uses them and no table overrides it."""
        if self.emulation.loss_recovery == "classic":
            return self
        turns = self.emulation.host_queue == "packet"
        tables = {
            name: tuple(
                each.model_copy(update={"transport": with_kernel_rules(each.transport, turns)})
                if each.transport
                else each
                for each in getattr(self, name)
            )
            for name in ("job", "traffic")
        }
        return self.model_copy(update={"transport": with_kernel_rules(self.transport, turns), **tables})

    @property
    def senders(self) -> tuple[Job | TrafficTable, ...]:
        """Return the tables of everything that sends: jobs, then traffic."""
        return (*self.job, *self.traffic)

    @property
    def host_count(self) -> int | None:
        """Number of hosts for jobs and traffic, each accelerator one; None before a topology file has been read."""
        machines = self.topology.host_count
        return None if machines is None else machines * self.host.gpus

    def is_host(self, name: str) -> bool:
        """Return True if a host has this name, unless the topology is a file."""
        machines, accelerator = self.topology.host_count or 0, "" if self.host.gpus == 1 else r"\.gpu(0|[1-9]\d*)"
        match = re.fullmatch(r"h(0|[1-9]\d*)" + accelerator, name)
        return match is not None and all(
            int(number) < count for number, count in zip(match.groups(), (machines, self.host.gpus), strict=False)
        )

    @property
    def host_names(self) -> str:
        """Range of host names, as text."""
        machines, gpus = self.topology.host_count or 0, self.host.gpus
        ends = ("", "") if gpus == 1 else (".gpu0", f".gpu{gpus - 1}")
        return f"h0{ends[0]} to h{machines - 1}{ends[1]}"

    @property
    def transports(self) -> tuple[AnyTransport, ...]:
        """Return every transport in use once, in the order of jobs and traffic."""
        used = [table.transport or self.transport for table in self.senders]
        return tuple(dict.fromkeys(used))

    def transport_of(self, table: Any) -> int:
        """Return the index in `transports` of the transport of a job or of traffic."""
        return self.transports.index(table.transport or self.transport)

    @property
    def policy_name(self) -> str:
        """Name of the policy that made this variant; "base" for a scenario as written."""
        return self._applied.name if self._applied else "base"

    @property
    def policy_label(self) -> str:
        """Display name of the policy that made this variant."""
        return (self._applied.label or self._applied.name) if self._applied else "as written"

    def at(self, directory: Path) -> Scenario:
        """Return the same scenario with its relative paths made absolute, starting at `directory`. A trace without a
        slash is a bundled one, unless a directory of that name lies in `directory`."""

        def absolute(path: str) -> str:
            return str((directory / Path(path).expanduser()).resolve())

        def trace(name: str) -> str:
            return absolute(name) if "/" in name or os.path.isdir(directory / name) else name

        scenario = self.with_paths(trace, absolute, Path(absolute(self.modules or ".")))
        scenario._folder = directory.resolve()
        return scenario

    def with_paths(self, trace: Callable[[str], str], file: Callable[[str], str], modules: Path) -> Scenario:
        """Return the same scenario with other paths.

        trace, file : map the trace of a job, and a file of topology or traffic, to the new path.
        modules : the new folder of user modules.
        """
        changed: dict[str, Any] = {
            "job": tuple(job.model_copy(update={"trace": trace(job.trace)}) for job in self.job),
            "traffic": tuple(each.at(file(each.path)) if each.path else each for each in self.traffic),
            "topology": self.topology.at(file(self.topology.path)) if self.topology.path else self.topology,
            "modules": None if self.modules is None else str(modules),
        }
        # unset fields stay unset: `as_written` leaves them out
        scenario = self.model_copy(update={key: value for key, value in changed.items() if value})
        scenario._folder = self._folder if self.modules else modules
        return scenario

    def read_from(self, file: str) -> Scenario:
        """Return this scenario with the name of the file it was read from."""
        scenario = self.model_copy()
        scenario._file = file
        return scenario

    @property
    def display_name(self) -> str:
        """Display name in messages: file, or name if there is none, and policy."""
        policy = f", policy {self._applied.name}" if self._applied else ""
        return f"{self._file or self.name}{policy}"

    @property
    def folder(self) -> Path | None:
        """Folder of user modules: that of the scenario's file, unless `modules` is set."""
        return self._folder if self.modules is None else Path(self.modules)

    def as_written(self) -> dict[str, Any]:
        """Return the fields that were set, as a file would hold them: units as text, defaults left out."""
        return self.model_dump(mode="json", exclude_unset=True)

    def variant_tables(self, policy: Policy) -> dict[str, Any]:
        """Return the tables of a file equal to this scenario under `policy`."""
        tables = {key: value for key, value in self.as_written().items() if key != "policy"}
        changed: dict[str, Any] = overlay(tables, policy.set)
        return changed

    def variant(self, policy: Policy | str) -> Scenario:
        """Return this scenario under one of its policies, by object or name. Raises `ScenarioError` for an unknown
        name; otherwise it cannot fail, as loading has checked every policy."""
        if not isinstance(policy, Policy):
            name = require_instance(policy, str, "variant(policy)", "a policy, or the name of one", ScenarioError)
            by_name = {each.name: each for each in self.policy}
            if name not in by_name:
                raise unknown_policy_error(name, list(by_name), self.display_name)
            policy = by_name[name]
        variant = Scenario.model_validate(self.variant_tables(policy))
        if self._folder is not None:
            variant = variant.at(self._folder)
        return variant.read_from(self._file).under(policy)

    def under(self, policy: Policy) -> Scenario:
        """Return this scenario as the variant that `policy` has made; the policy's values must already be in it."""
        variant = self.model_copy()
        variant._applied = policy
        return variant

    def __repr__(self) -> str:
        return f"<Scenario {self._summary_text()}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: a summary and the TOML text."""
        from html import escape

        text = f"<details><summary>TOML</summary><pre>{escape(write_toml(self.as_written()))}</pre></details>"
        return f"<p><b>Scenario</b>: {escape(self._summary_text())}</p>{text}"

    def _summary_text(self) -> str:
        """Return a summary: name, policy, network, jobs and traffic."""
        policy = "" if self.policy_name == "base" else f" {self.policy_name}"
        parts = [f"{self.name}{policy}: {self.transport.kind} over {self.topology.kind}"]
        parts += [f"job {job.name} of {job.workers} workers" for job in self.job]
        parts += [f"traffic {each.name}" for each in self.traffic]
        return ", ".join(parts) + (f"; {len(self.policy)} policies" if self.policy else "")

    def variants(self) -> list[Scenario]:
        """Return one scenario per policy, in file order; the scenario itself if it has none."""
        return [self.variant(policy) for policy in self.policy] or [self]

    def digest(self) -> str:
        """Return the SHA-256 (hex) over every value that can influence a run, defaults included, on every machine
        alike.

        Names, descriptions, labels, emulation options, tolerances, measurement and policies do not count: a variant has
        the digest of the same scenario written out by hand. A file of a graph or of traffic counts by its content; a
        trace not at all, since it has its own digest.
        """
        excluded = {"name", "description", "modules", "policy", "emulation", "exec", "fidelity", "measure"}
        data = self.model_dump(mode="json", exclude=excluded)
        for job in data["job"]:
            del job["trace"]
        data["traffic"] = [_by_content(each) for each in self.traffic]
        data["topology"] = _by_content(self.topology)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _by_content(table: TopologyTable | TrafficTable) -> dict[str, Any]:
    """Return a table as written, with the digest of its file instead of the file's name."""
    if table.path and os.path.isfile(table.path):
        table = table.at(hashlib.sha256(Path(table.path).read_bytes()).hexdigest())
    return table.model_dump(mode="json")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file, for editors and other programs, without cross-field checks."""
    schema = describe(Scenario.model_json_schema(), Scenario)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
