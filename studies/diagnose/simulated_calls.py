"""`simulated_ns` simulates one collective of a job on a network: the only place in which `diagnose` simulates.

The members of a host count as one worker with as many NICs, so time on links inside hosts is left out: it is short
beside that of the network for the large collectives that matter. Collectives are rings, in which every member sends and
receives all the time, as NCCL's are.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradwire.analysis.diagnosis.call_times import CallClass
from gradwire.result_store.arrow import to_numpy
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.load import build_scenario, load_tables
from gradwire.scenarios.schema.policy import overlay
from gradwire.scenarios.units import parse_rate
from gradwire.sim.simulate import simulate
from gradwire.traces.parts import Iteration, TensorInfo
from gradwire.traces.rank_graphs import RankCall, RankGraphs
from gradwire.traces.trace import Trace

MAX_BYTES = 64_000_000
"""Larger collectives are simulated with this size, and the time is scaled: rings of this size are paced by rate."""
SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
DEFAULT_RATE = "400Gbps"
HOSTS_PER_GROUP = 4
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OTHER_TABLES = ("job", "traffic", "policy", "output", "measure", "fault", "training", "exec", "emulation", "fidelity")


@dataclass(frozen=True)
class DiagnosisNetwork:
    """A network to simulate on: tables of a scenario without jobs. `policies` : label and changes of each variant.

    has_topology : True if the tables have one; otherwise hosts with a NIC per member, on rails of HOSTS_PER_GROUP hosts
    that are joined by spines.
    """

    tables: Mapping[str, Any]
    policies: Mapping[str, Mapping[str, Any]]
    title: str
    has_topology: bool = False
    slow_factor: float = field(default=1.0)

    def with_slow_link(self, factor: float) -> DiagnosisNetwork:
        """Return the network whose first host has links that are slower by a factor."""
        return replace(self, slow_factor=factor)


POLICIES: dict[str, dict[str, Any]] = {
    "packet spraying": {"load_balancing": "spray_random"},
    "DCQCN with flow control": {
        "transport": "dcqcn",
        "switch": {"pfc": True, "buffer": "16MiB", "pfc_threshold": "256KiB"},
    },
    "Ultra Ethernet (NSCC, trimming)": {
        "transport": "nscc",
        "load_balancing": "reps",
        "switch": {"trim_threshold": "400KiB"},
    },
}
"""Variants of the built-in network; our choice."""


def built_in_network(rate: str = DEFAULT_RATE) -> DiagnosisNetwork:
    """Return a network of rails with NICs of a rate, DCTCP and paths by flow hash."""
    tables = {
        "transport": "dctcp",
        "link": {"rate": rate, "latency": "1us"},
        "switch": {"buffer": "16MiB", "ecn_threshold": "400KiB"},
        "load_balancing": "ecmp",
    }
    return DiagnosisNetwork(tables, POLICIES, f"rails of {rate} NICs, DCTCP, paths by flow hash")


def scenario_network(name: str) -> DiagnosisNetwork:
    """Return the network of a scenario, with its first three policies; its jobs and traffic are left out.

    Raises GradwireError for a scenario that cannot be read, or that names user code, which a diagnosis does not run.
    """
    tables = load_tables(name)
    if "modules" in tables or (named := _user_class(tables)):
        what = "has modules" if "modules" in tables else f"names the class {named}"
        raise GradwireError(what, name, "a network of gradwire's own components")
    policies = {str(each.get("label", each.get("name"))): each.get("set", {}) for each in tables.get("policy", ())[:3]}
    kept = {key: value for key, value in tables.items() if key not in _OTHER_TABLES}
    return DiagnosisNetwork(kept, policies, str(tables.get("name", name)), "topology" in kept)


def _user_class(value: Any) -> str:
    """Return the first text in tables that names a class of a module, "" if there is none."""
    if isinstance(value, str):
        return value if _CLASS.fullmatch(value) else ""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for member in members if (found := _user_class(member))), "")


def simulated_ns(kind: CallClass, hosts: int, network: DiagnosisNetwork, policy: str = "") -> float:
    """Return how long a collective between hosts takes on a network, in ns, under one of its policies or none.

    Raises GradwireError if the network has too few hosts, or does not go with the policy.
    """
    if kind.kind not in SIMULATED or hosts < 2:
        raise GradwireError(f"{kind.kind} among {hosts} hosts", "diagnose", f"{', '.join(SIMULATED)} among several")
    per_host = max(kind.members // hosts, 1)
    nbytes = kind.nbytes * (per_host if kind.kind == "all_to_all" else 1)
    chosen = max(min(nbytes, MAX_BYTES), hosts * per_host * 4)
    tables = _tables(network, hosts, per_host)
    if policy:
        tables = overlay(tables, copy.deepcopy(dict(network.policies[policy])))
    result = simulate(build_scenario(tables, network.title), _trace(kind.kind, hosts, chosen))
    took_ps = int(to_numpy(result.iterations["end_ps"]).max())
    return took_ps / 1000 * max(nbytes / chosen, 1.0)


def _tables(network: DiagnosisNetwork, hosts: int, per_host: int) -> dict[str, Any]:
    tables = copy.deepcopy(dict(network.tables))
    if not network.has_topology:
        groups = min(HOSTS_PER_GROUP, hosts)
        tables["topology"] = {
            "kind": "rail",
            "hosts": hosts,
            "cards": per_host,
            "hosts_per_group": groups,
            "spines": groups * per_host,
        }
        if network.slow_factor > 1:
            rate = parse_rate(str(tables.get("link", {}).get("rate", "100Gbps")))
            host = "h0" if per_host == 1 else "h0.nic0"
            slow = {"between": [host, "rail0_0"], "rate": f"{max(int(rate / network.slow_factor), 1)}bps"}
            tables["link_override"] = [slow]
    return {**tables, "name": "diagnose", "seed": 1, **_job(hosts)}


def _job(hosts: int) -> dict[str, Any]:
    job = {"name": "call", "trace": "resnet50", "workers": hosts, "iterations": 1, "exchange": {"kind": "graph"}}
    return {"job": [job]}


def _trace(kind: str, ranks: int, nbytes: int) -> Trace:
    """Return a trace in which all ranks make one call, and compute nothing."""
    zeros = np.zeros(1, dtype=np.int64)
    iteration = Iteration(0, "call", 0, float("nan"), zeros, zeros, zeros, 0, 0, 0)
    none = np.zeros(ranks, dtype=np.int64)
    graphs = RankGraphs(
        names=[f"call of rank {rank}" for rank in range(ranks)],
        rank=np.arange(ranks),
        unit=none,
        role=none + 2,
        effort_ps=none,
        call=none,
        first=np.zeros(ranks + 1, dtype=np.int64),
        needs=np.zeros(0, dtype=np.int64),
        calls=[RankCall(kind, tuple(range(ranks)), nbytes)],
    )
    magnitude = np.ones((1, 1), dtype=np.float16)
    tensors = [TensorInfo("call", (1,), 1, "float32", 0)]
    manifest = {"name": "call"}
    return Trace(manifest, ["call"], tensors, [iteration], magnitude, magnitude, magnitude, graphs=graphs)
