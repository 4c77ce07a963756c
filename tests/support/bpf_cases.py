"""Networks whose switches are the kernel's ports with BPF."""

from __future__ import annotations

from typing import Any

from emu_cases import star

from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.linux_network.bpf_switch import BpfSwitch

FAST = 10_000_000_000
"""bit/s of the senders' links: what they send is at the port at once."""


def fast_in(hosts: int, slow: int, **options: Any) -> TestbedPlan:
    """A star whose hosts send fast and receive slowly."""
    rates = {(host, hosts): FAST for host in range(hosts)} | {(hosts, host): slow for host in range(hosts)}
    return star(hosts, rate=rates, **options)


def build(plan: TestbedPlan) -> BpfSwitch:
    network = BpfSwitch(plan, wired=False)
    network.build()
    return network


def count_of(network: BpfSwitch, port: str) -> Any:
    return next(each for each in network.counts() if each.port == port)


def leaks_of(network: BpfSwitch) -> list[str]:
    """Ports with packets that entered and never left; asked only when no packet is in flight."""
    ports = zip(network.plan.ports, network._maps["ports"].entries.copy(), strict=True)
    return [port.name for port, entry in ports if entry["in_packets"] != entry["out_packets"]]
