"""Reads presets: TOML descriptions of clusters with sources, policies, and the constants of their fabric class."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.explain import explain_validation_error
from gradwire.scenarios.loading.load import build_scenario, read_text
from gradwire.scenarios.loading.overrides import apply_overrides
from gradwire.scenarios.loading.toml import read_toml
from gradwire.scenarios.schema.base import Count, ScenarioTable
from gradwire.scenarios.schema.policy import overlay
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.busbw.machine import Constants, HostSpec

Positive = Annotated[float, Field(gt=0, le=1e5)]
FABRIC_CLASSES = ("verbs", "efa-1", "efa-2", "slingshot", "tcpxo", "sockets", "host-path")
"""Classes of fabrics and their software whose constants are fitted to measured clusters."""
PLACEHOLDER: Mapping[str, Any] = MappingProxyType({"kind": "permutation", "name": "check", "size": "64KiB"})
"""Traffic of a scenario that is only checked."""


class HostTable(ScenarioTable):
    """A host and its accelerators."""

    gpus: Count
    """Accelerators of a host."""
    generation: Literal["volta", "ampere", "hopper", "blackwell"]
    """Generation of the accelerators; NCCL's limits depend on it."""
    cpu: Literal["intel", "amd", "arm"] = "intel"
    """Maker of the processors; NCCL's choice of a protocol depends on it."""
    nvlink: Positive | None = None
    """GB/s of an accelerator's scale-up links in one direction; by default those of its generation."""
    nvls: bool = True
    """True if the scale-up switch sums and NCCL uses it; needs Hopper or later."""
    channels: Count | None = None
    """NCCL's channels between hosts; by default two per NIC, at least 2 and at most 16."""
    tuner: bool = False
    """True if a tuner plugin takes the fastest algorithm instead of NCCL's model."""


class TopologyPlan(ScenarioTable):
    """The growth of the network with the hosts."""

    cards: Count
    """NICs of a host, each on a rail of its own."""
    hosts_per_group: Annotated[int, Field(ge=1, le=4096)] = 64
    """Hosts that share rail switches; more hosts need spines."""
    spines: Count | None = None
    """Spine switches; by default one per host of a group, so that nothing is oversubscribed."""


class NetworkTables(ScenarioTable):
    """Tables of a scenario, which the scenario validates."""

    transport: str | dict[str, Any]
    load_balancing: str | None = None
    link: dict[str, Any] = Field(default_factory=dict)
    switch: dict[str, Any] = Field(default_factory=dict)
    host: dict[str, Any] = Field(default_factory=dict)


class ConstantsTable(ScenarioTable):
    """Constants that replace the fitted ones; see docs/collective.md."""

    launch_us: Annotated[float, Field(ge=0, le=1e6)] | None = None
    step_us: Annotated[float, Field(ge=0, le=1e6)] | None = None
    flush_us: Annotated[float, Field(ge=0, le=1e6)] | None = None
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    host_gbytes: Annotated[float, Field(gt=0, le=1e6)] | None = None
    p2p_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    peer_us: Annotated[float, Field(ge=0, le=1e6)] | None = None
    fill: Annotated[float, Field(ge=0, le=100)] | None = None
    nvlink_efficiency: Annotated[float, Field(gt=0, le=2)] | None = None
    nvls_efficiency: Annotated[float, Field(gt=0, le=2)] | None = None


class PresetPolicy(ScenarioTable):
    """A variant of a cluster."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    label: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)


class Preset(ScenarioTable):
    """A cluster; `network` holds the scenario tables transport, load_balancing, link and switch."""

    description: str
    fabric_class: Literal["verbs", "efa-1", "efa-2", "slingshot", "tcpxo", "sockets", "host-path"]
    sources: tuple[str, ...] = ()
    host: HostTable
    topology: TopologyPlan
    network: NetworkTables
    constants: ConstantsTable = ConstantsTable()
    policy: tuple[PresetPolicy, ...] = ()

    def scenario(self, hosts: int, traffic: Sequence[Mapping[str, Any]] = ()) -> Scenario:
        """Return the network of `hosts` hosts with `traffic`. Raises ScenarioError if the tables are not valid."""
        plan = self.topology
        group = min(hosts, plan.hosts_per_group)
        spines = 0 if hosts <= group else plan.spines or group
        topology = {"kind": "rail", "hosts": hosts, "cards": plan.cards, "hosts_per_group": group, "spines": spines}
        own = {key: value for key, value in self.network.model_dump().items() if value not in (None, {})}
        tables = {"name": "collective", **own, "topology": topology}
        if not spines:
            tables.pop("load_balancing", None)
            tables["switch"] = {key: value for key, value in tables.get("switch", {}).items() if key != "flowlet_gap"}
        flows = [dict(table) for table in traffic or [PLACEHOLDER]]
        return build_scenario({**tables, "traffic": flows}, self.description)

    def host_spec(self, gpus: int | None = None) -> HostSpec:
        """Return the hosts, with `gpus` accelerators taking part."""
        rate = self.scenario(2).link.rate
        return HostSpec(
            gpus=self.host.gpus if gpus is None else gpus,
            generation=self.host.generation,
            nics=self.topology.cards,
            nic_gbytes=rate / 8e9,
            cpu=self.host.cpu,
            nvlink=self.host.nvlink,
            nvls=self.host.nvls,
            channels=self.host.channels,
            tuner=self.host.tuner,
        )

    def fitted_constants(self) -> Constants:
        """Return the constants: the preset's own, or else those fitted to its fabric class and accelerators."""
        fitted = fitted_tables()
        accelerator = self.host.generation if (self.host.nvlink or 1000) >= 100 else "pcie"
        values = {**fitted["accelerator"].get(accelerator, {}), **fitted["fabric"][self.fabric_class]}
        own = {key: value for key, value in self.constants.model_dump().items() if value is not None}
        return Constants(**{key: value for key, value in {**values, **own}.items() if not key.startswith("error")})


@cache
def fitted_tables() -> dict[str, dict[str, dict[str, float]]]:
    """Return the fitted constants by fabric class and accelerator, which `gradwire reproduce clusters` writes."""
    text = (resources.files("gradwire.studies.busbw") / "constants.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)  # type: ignore[return-value]


def list_presets() -> list[str]:
    """Return the names of the bundled presets."""
    folder = resources.files("gradwire.studies.busbw") / "presets"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def policy_names(source: str) -> list[str]:
    """Return the names of a preset's policies. Raises ScenarioError if the preset is unknown."""
    return [policy.name for policy in load_preset(source).policy]


def load_preset(source: str, overrides: Sequence[str] = (), policy: str | None = None) -> Preset:
    """Load a preset by name or from a file, with `overrides` such as "network.link.rate=200Gbps", under a policy.

    Raises ScenarioError with every mistake.
    """
    tables, where = _tables(source)
    if policy is not None:
        named = {entry.get("name"): entry for entry in tables.get("policy", []) if isinstance(entry, dict)}
        if policy not in named:
            known = ", ".join(str(name) for name in named) or "a preset with policies"
            raise ScenarioError(f'has no policy "{policy}"', where, known + nearest(policy, [str(n) for n in named]))
        tables = {**overlay({k: v for k, v in tables.items() if k != "policy"}, named[policy].get("set", {}))}
    tables = apply_overrides(tables, overrides)
    try:
        preset = Preset.model_validate(tables)
    except ValidationError as error:
        mistakes = explain_validation_error(error, tables, Preset)
        raise ScenarioError("invalid preset:", where, mistakes=mistakes) from None
    preset.scenario(2)
    return preset


def _tables(source: str) -> tuple[dict[str, Any], str]:
    """Return a preset's tables and their name for messages."""
    if source in list_presets():
        text = (resources.files("gradwire.studies.busbw") / "presets" / f"{source}.toml").read_text(encoding="utf-8")
        return read_toml(text), source
    if not source.endswith(".toml"):
        expected = f"one of {', '.join(list_presets())}, or a .toml file{nearest(source, list_presets())}"
        raise ScenarioError("no such preset", source, expected)
    try:
        return read_toml(read_text(Path(source), "a preset (.toml)")), source
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"is not TOML: {error}", source, "a preset (.toml)") from None
