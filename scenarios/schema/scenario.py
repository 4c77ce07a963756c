"""Scenario: everything a run is told, as frozen pydantic models.

    Scenario
      topology                                        gradwire.scenarios.schema.topology
      link, link_override, switch, host               gradwire.scenarios.schema.network
      load_balancing, transport                       gradwire.scenarios.schema.transport
      job[]                                           gradwire.scenarios.schema.job
        exchange                                      gradwire.scenarios.schema.exchange
        tagging                                       gradwire.scenarios.schema.policy
      traffic[]                                       gradwire.scenarios.schema.traffic
      fault[]                                         gradwire.scenarios.schema.fault
      policy[]                                        variants of the scenario, for comparing
      output
      simulation                                      gradwire.scenarios.schema.simulation
      emulation                                       gradwire.scenarios.schema.emulation
      exec                                            gradwire.scenarios.schema.exec
      fidelity                                        gradwire.scenarios.schema.fidelity
      training                                        gradwire.scenarios.schema.training

What is chosen by name - topology, transport, exchange, traffic, fault - is a model of its own for each kind, found by
`gradwire.scenarios.components`; the modules named here have what all kinds share.

Each model checks what can be said of it alone; `gradwire.scenarios.checks.scenario` holds what needs several of them,
such as more workers than hosts. Read files with `gradwire.scenarios.load.load_scenario`, which reports every mistake
at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from gradwire.scenarios.checks import scenario as checks
from gradwire.scenarios.components import components, is_name
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import instance_of
from gradwire.scenarios.schema.base import Flag, Mistakes, Table, refuse
from gradwire.scenarios.schema.bound import bound_of
from gradwire.scenarios.schema.chosen import Chosen, examples
from gradwire.scenarios.schema.described import describe
from gradwire.scenarios.schema.effect_conditions import PACKETS, SEVERAL_PATHS, Needs, Situation
from gradwire.scenarios.schema.emulation import Emulation
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.fault import Fault
from gradwire.scenarios.schema.fidelity import Fidelity
from gradwire.scenarios.schema.job import HostPlacement, Job
from gradwire.scenarios.schema.measured import Measure
from gradwire.scenarios.schema.network import Host, Link, LinkOverride, Switch
from gradwire.scenarios.schema.policy import Policy, Tagging, overlay
from gradwire.scenarios.schema.simulation import Simulation
from gradwire.scenarios.schema.tcp_rules import as_kernel
from gradwire.scenarios.schema.topology import TopologyTable
from gradwire.scenarios.schema.traffic import Traffic
from gradwire.scenarios.schema.training import Training
from gradwire.scenarios.schema.transport import AnyTransport, UserTransport, default_transport
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, UnitError, format_time

__all__ = [
    "Fidelity", "Host", "HostPlacement", "Job", "Link", "LinkOverride", "Measure", "Output", "Policy", "Scenario",
    "Switch", "Tagging", "Transport", "UserTransport", "json_schema",
]  # fmt: skip

AnyTopology = Annotated[TopologyTable, Chosen("topology")]
AnyTraffic = Annotated[Traffic, Chosen("traffic")]
AnyFault = Annotated[Fault, Chosen("fault")]


def _balancer(value: Any) -> str:
    if not isinstance(value, str) or not is_name("load_balancing", value):
        raise UnitError("is no load balancer", ", ".join(components("load_balancing")) + ' or "my_module:MyBalancer"')
    return value


SHORTEST_PERIOD = 1000
"""Picoseconds between two samples of queues."""


OF_RUNS = Needs(lambda at: not at.is_trained(), "a training keeps no packets and no queues", "gradwire run")


def _may_miss(at: Situation) -> bool:
    """Return True if a message may be delivered without all of its bytes."""
    return at.is_trained() or not at.scenario.senders or any(
        ":" in transport.kind or bound_of(sender) > 0 for sender, transport in at.carried()
    )


class Output(Table):
    """What a run records beyond its tables."""

    packet_log: Annotated[Flag | tuple[str, ...], OF_RUNS] = False
    """Every transmission of every packet, or of the jobs and traffic named; for small networks only."""
    queue_samples: Annotated[PositiveTime | None, OF_RUNS] = None
    """How often to note what waits at ports and what they have sent; never if absent. At least 1 ns, in which not even
    the smallest packet crosses a link of 400 Gbps."""
    sample_ports: tuple[str, ...] | None = None
    """Which: ports such as "leaf0->h3", or nodes for all their ports. All of all switches if absent."""
    delays: Flag = False
    """Count how long packets wait at every port."""
    missing: Annotated[
        Flag, Needs(_may_miss, "every message arrives whole", "job.push_bound, job.pull_bound or traffic.bound above 0")
    ] = True
    """Of messages that are delivered without all of their bytes, note which are missing."""

    @model_validator(mode="after")
    def _samples(self) -> Output:
        if self.queue_samples is not None and self.queue_samples < SHORTEST_PERIOD:
            raise refuse("queue_samples", "is shorter than any packet", format_time(self.queue_samples), "at least 1ns")
        if self.sample_ports is not None and self.queue_samples is None:
            raise refuse("sample_ports", "is of no use", list(self.sample_ports), "queue_samples as well")
        return self


class Scenario(Table):
    """One experiment. Equal scenarios, traces and versions give equal Results, byte for byte."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 1
    """Everything random is drawn from this one number."""
    duration: PositiveTime | None = None
    """Simulated time after which the run ends even if jobs are not done, or flows under way."""
    modules: Annotated[str, Field(min_length=1)] | None = None
    """Folder of the modules that are named as "module:Class"; that of the scenario file if absent."""
    topology: AnyTopology
    link: Annotated[Link, PACKETS] = Link()
    link_override: Annotated[tuple[LinkOverride, ...], PACKETS] = ()
    switch: Annotated[Switch, PACKETS] = Switch()
    host: Host = Host()
    load_balancing: Annotated[
        str, BeforeValidator(_balancer), Field(json_schema_extra=examples("load_balancing")), SEVERAL_PATHS, PACKETS
    ] = "ecmp"
    """Which of the shortest paths a packet takes: by flow hash (weighted: in proportion to the links' rates), packet by
    packet (spray, least_queue), burst by burst (flowlet), or as the sending host says, packet by packet (source routes;
    reps: hashes of entropies of which those that went well are used again)."""
    transport: Annotated[
        AnyTransport,
        Needs(lambda at: not at.scenario.senders or any(each.transport is None for each in at.scenario.senders),
              "every job and traffic names a transport of its own", "a job or traffic without one"),
    ] = default_transport()
    job: tuple[Job, ...] = ()
    traffic: tuple[AnyTraffic, ...] = ()
    fault: tuple[AnyFault, ...] = ()
    policy: tuple[Policy, ...] = ()
    output: Output = Output()
    simulation: Simulation = Simulation()
    measure: Measure = Measure()
    """Which part of a run figures of traffic are of; the run itself does not depend on it."""
    emulation: Emulation = Emulation()
    exec: Exec | None = None
    """How programs of one's own run across this network (`gradwire exec`)."""
    fidelity: Fidelity = Fidelity()
    training: Training | None = None
    """What `gradwire train` trains over this network."""

    _applied: Policy | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)
    _file: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _whole(self) -> Scenario:
        mistakes = checks.find_mistakes(self)
        for policy in self.policy if not mistakes else ():
            mistakes.extend(checks.find_policy_mistakes(self, policy))
        if mistakes:
            raise Mistakes(mistakes)
        return self

    def with_kernels_tcp(self) -> Scenario:
        """The scenario as it is set beside a kernel: TCP by the kernel's rules, where the testbed has them and no
        table says otherwise."""
        if self.emulation.loss_recovery == "classic":
            return self
        turns = self.emulation.host_queue == "packet"
        tables = {
            name: tuple(
                each.model_copy(update={"transport": as_kernel(each.transport, turns)}) if each.transport else each
                for each in getattr(self, name)
            )
            for name in ("job", "traffic")
        }
        return self.model_copy(update={"transport": as_kernel(self.transport, turns), **tables})

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The `[[job]]` tables."""
        return self.job

    @property
    def senders(self) -> tuple[Job | Traffic, ...]:
        """The tables of everything that sends: jobs, then traffic."""
        return (*self.job, *self.traffic)

    @property
    def host_count(self) -> int | None:
        """Hosts that jobs and traffic are placed on, each accelerator one; None before a file has been read."""
        machines = self.topology.host_count
        return None if machines is None else machines * self.host.gpus

    def is_host(self, name: str) -> bool:
        """Whether one of them is called so, where the topology is no file."""
        machines, accelerator = self.topology.host_count or 0, "" if self.host.gpus == 1 else r"\.gpu(0|[1-9]\d*)"
        found = re.fullmatch(r"h(0|[1-9]\d*)" + accelerator, name)
        return found is not None and all(
            int(number) < count for number, count in zip(found.groups(), (machines, self.host.gpus), strict=False)
        )

    @property
    def host_names(self) -> str:
        """Their names, in words."""
        machines, gpus = self.topology.host_count or 0, self.host.gpus
        ends = ("", "") if gpus == 1 else (".gpu0", f".gpu{gpus - 1}")
        return f"h0{ends[0]} to h{machines - 1}{ends[1]}"

    @property
    def transports(self) -> tuple[AnyTransport, ...]:
        """Every transport that carries something, in the order of jobs and traffic; none twice."""
        used = [table.transport or self.transport for table in self.senders]
        return tuple(dict.fromkeys(used))

    def transport_of(self, table: Any) -> int:
        """Which of `transports` carries the messages of a job or of traffic."""
        return self.transports.index(table.transport or self.transport)

    @property
    def policy_name(self) -> str:
        """Name of the policy that made this variant; "base" for a scenario as written."""
        return self._applied.name if self._applied else "base"

    @property
    def policy_label(self) -> str:
        """The same for people."""
        return (self._applied.label or self._applied.name) if self._applied else "as written"

    def at(self, directory: Path) -> Scenario:
        """The same scenario with its relative paths made absolute, starting at `directory`.

        A trace without a slash is a bundled one, unless a directory of that name lies in `directory`.
        """

        def absolute(path: str) -> str:
            return str((directory / Path(path).expanduser()).resolve())

        def trace(name: str) -> str:
            return absolute(name) if "/" in name or os.path.isdir(directory / name) else name

        scenario = self.moved(trace, absolute, Path(absolute(self.modules or ".")))
        scenario._folder = directory.resolve()
        return scenario

    def moved(self, trace: Callable[[str], str], file: Callable[[str], str], modules: Path) -> Scenario:
        """The same scenario with other paths.

        Parameters
        ----------
        trace, file : what stands there for the trace of a job, and for a file of topology or traffic, from what does.
        modules : the folder of modules of one's own.
        """
        changed: dict[str, Any] = {
            "job": tuple(job.model_copy(update={"trace": trace(job.trace)}) for job in self.job),
            "traffic": tuple(each.at(file(each.path)) if each.path else each for each in self.traffic),
            "topology": self.topology.at(file(self.topology.path)) if self.topology.path else self.topology,
            "modules": None if self.modules is None else str(modules),
        }
        # what was not given stays so: `as_written` leaves it out
        scenario = self.model_copy(update={key: value for key, value in changed.items() if value})
        scenario._folder = self._folder if self.modules else modules
        return scenario

    def read_from(self, file: str) -> Scenario:
        """This scenario as one that was read from a file, called so."""
        scenario = self.model_copy()
        scenario._file = file
        return scenario

    @property
    def called(self) -> str:
        """What to call it in messages: its file, or its name where it is of none, and the policy that made it."""
        policy = f", policy {self._applied.name}" if self._applied else ""
        return f"{self._file or self.name}{policy}"

    @property
    def folder(self) -> Path | None:
        """Where modules lie that are named as "module:Class": beside the scenario's file, unless it says otherwise."""
        return self._folder if self.modules is None else Path(self.modules)

    def as_written(self) -> dict[str, Any]:
        """The fields that were given, as a file would hold them: units as text, defaults left out."""
        return self.model_dump(mode="json", exclude_unset=True)

    def variant_tables(self, policy: Policy) -> dict[str, Any]:
        """The file that says the same as this one under `policy`."""
        tables = {key: value for key, value in self.as_written().items() if key != "policy"}
        laid_over: dict[str, Any] = overlay(tables, policy.set)
        return laid_over

    def variant(self, policy: Policy | str) -> Scenario:
        """This scenario under one of its policies, or the one that is named. Raises `ScenarioError` if there is no such
        one; else it cannot fail, as loading has tried every policy."""
        if not isinstance(policy, Policy):
            from gradwire.scenarios.load import pick_variant

            name = instance_of(policy, str, "variant(policy)", "a policy, or the name of one", ScenarioError)
            return pick_variant(self, name)
        variant = Scenario.model_validate(self.variant_tables(policy))
        if self._folder is not None:
            variant = variant.at(self._folder)
        return variant.read_from(self._file).under(policy)

    def under(self, policy: Policy) -> Scenario:
        """This scenario as the variant that `policy` has made; what the policy sets is in it already."""
        variant = self.model_copy()
        variant._applied = policy
        return variant

    def __repr__(self) -> str:
        return f"<Scenario {self._what()}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """What notebooks show: what it is, and the file that it would be."""
        from html import escape

        from gradwire.scenarios.toml import write_toml

        text = f"<details><summary>TOML</summary><pre>{escape(write_toml(self.as_written()))}</pre></details>"
        return f"<p><b>Scenario</b>: {escape(self._what())}</p>{text}"

    def _what(self) -> str:
        """Its name, policy, network and what it carries."""
        policy = "" if self.policy_name == "base" else f" {self.policy_name}"
        parts = [f"{self.name}{policy}: {self.transport.kind} over {self.topology.kind}"]
        parts += [f"job {job.name} of {job.workers} workers" for job in self.job]
        parts += [f"traffic {each.name}" for each in self.traffic]
        return ", ".join(parts) + (f"; {len(self.policy)} policies" if self.policy else "")

    def variants(self) -> list[Scenario]:
        """One scenario per policy, in file order; the scenario itself if it names none."""
        return [self.variant(policy) for policy in self.policy] or [self]

    def digest(self) -> str:
        """SHA-256 (hex) over every value that can influence a run, defaults included, on every machine alike.

        Names, descriptions and labels do not count, nor how it is emulated, tolerances, what is measured and
        policies: a variant has the digest of the same scenario written out by hand. A file of a graph or of traffic
        counts by its content; a trace not at all, it has a digest of its own.
        """
        apart = {"name", "description", "modules", "policy", "emulation", "exec", "fidelity", "measure"}
        data = self.model_dump(mode="json", exclude=apart)
        if self.simulation == Simulation():
            del data["simulation"]  # scenarios from before there was any have the digests that they had
        for job in data["job"]:
            del job["trace"]
        data["traffic"] = [_by_content(each) for each in self.traffic]
        data["topology"] = _by_content(self.topology)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _by_content(table: TopologyTable | Traffic) -> dict[str, Any]:
    """A table as it is written, with the digest of its file, where there is one, in the place of the file's name."""
    if table.path and os.path.isfile(table.path):
        table = table.at(hashlib.sha256(Path(table.path).read_bytes()).hexdigest())
    return table.model_dump(mode="json")


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors and other programs. Cross-field checks are not in it."""
    schema = describe(Scenario.model_json_schema(), Scenario)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
