"""Writes the `ip` and nftables lines for routes through switches, and compares the kernel's state with them.

ecmp by the kernel    one route with several next hops; Linux hashes addresses and ports
by a mark             each packet gets the number of its next hop, counted from 1, as a mark; rule w sends mark w to the
                      table with the w-th next hop of every host. The mark comes from nftables (counting, or random) or
                      from a BPF program (`port.c`), which draws from the scenario's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.emu.planning.plan import TestbedPlan, host_address, port_address
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.linux_network.devices import namespace_name
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.kernel_tcp import metrics_shown
from gradwire.emu.system.namespaces import Namespaces, inside, run_tool
from gradwire.scenarios.json_data import JsonView

FIRST_TABLE = 1000
FIRST_RULE = 100
KERNEL, NFT, BPF = "kernel", "nft", "bpf"
"""Selectors among several next hops."""
NFT_DRAWS = {"spray_round_robin": "inc", "spray_random": "random"}


def _hop(port: int) -> str:
    return f"via {port_address(port ^ 1)} dev p{port} onlink"


def _egress_ports(plan: TestbedPlan, node: int) -> dict[int, Sequence[int]]:
    return {host: ports for (switch, host), ports in sorted(plan.routes.items()) if switch == node and ports}


def max_next_hops(plan: TestbedPlan, node: int) -> int:
    return max((len(ports) for ports in _egress_ports(plan, node).values()), default=0)


def route_lines(plan: TestbedPlan, node: int, chooser: str) -> list[str]:
    lines = []
    most_hops = 0
    for host, ports in _egress_ports(plan, node).items():
        address = host_address(host)
        if len(ports) > 1 and chooser == KERNEL:
            hops = " ".join(f"nexthop {_hop(port)}" for port in ports)
            lines.append(f"route add {address}/32 {hops}")
            continue
        lines.append(f"route add {address}/32 {_hop(ports[0])}")
        if len(ports) > 1:
            most_hops = max(most_hops, len(ports))
            lines += [
                f"route add {address}/32 {_hop(port)} table {FIRST_TABLE + way}" for way, port in enumerate(ports, 1)
            ]
    lines += [
        f"rule add pref {FIRST_RULE + way} fwmark {way} lookup {FIRST_TABLE + way}" for way in range(1, most_hops + 1)
    ]
    return lines


def nft_text(plan: TestbedPlan, node: int) -> str:
    """Return the nftables rules of a spraying switch; "" if every host has one next hop."""
    groups: dict[int, list[str]] = {}
    for host, ports in _egress_ports(plan, node).items():
        if len(ports) > 1:
            groups.setdefault(len(ports), []).append(host_address(host))
    if not groups:
        return ""
    draw = NFT_DRAWS[plan.balancing]
    rules = "\n".join(
        f"    ip daddr {{ {', '.join(hosts)} }} meta mark set numgen {draw} mod {ways} offset 1"
        for ways, hosts in sorted(groups.items())
    )
    return (
        "table ip gradwire {\n  chain ways {\n    type filter hook prerouting priority -150; policy accept;\n"
        f"{rules}\n  }}\n}}\n"
    )


def queries(plan: TestbedPlan, node: int) -> tuple[str, ...]:
    return ("route show",) if node < plan.host_count else ("route show table all", "rule show")


def check_node(plan: TestbedPlan, node: int, answers: Sequence[Any], spaces: Namespaces, chooser: str) -> None:
    """Compare a node's routes, rules and nftables with the plan."""
    if node < plan.host_count:
        _check_host(plan, node, answers[0])
    else:
        _check_switch(plan, node, answers[0], answers[1], spaces, chooser)


def _check_host(plan: TestbedPlan, node: int, routes: Any) -> None:
    ports = plan.ports_of_node(node)
    metrics = tuple(sorted(kernel_tcp.metrics(plan, kernel_tcp.tick_ns()).items()))
    expected = {("10.0.0.0/8", port_address(ports[0].number ^ 1), ports[0].device, metrics)} if ports else set()
    actual = {
        (route["dst"], route.get("gateway"), route.get("dev"), tuple(sorted(metrics_shown(route).items())))
        for route in routes
    }
    _same(expected, actual, "routes", plan.names[node])


def _check_switch(plan: TestbedPlan, node: int, routes: Any, rules: Any, spaces: Namespaces, chooser: str) -> None:
    expected: set[Any] = set()
    for host, ports in _egress_ports(plan, node).items():
        address = host_address(host)
        hops = tuple((port_address(port ^ 1), f"p{port}") for port in ports)
        expected.add((address, "main", hops if chooser == KERNEL else hops[:1]))
        if len(ports) > 1 and chooser != KERNEL:
            expected |= {(address, str(FIRST_TABLE + way), (hop,)) for way, hop in enumerate(hops, 1)}
    actual = {
        (entry["dst"], str(entry.get("table", "main")), _hops(entry))
        for entry in routes
        if entry.get("table") != "local" and entry.get("type", "unicast") == "unicast" and ":" not in entry["dst"]
    }
    _same(expected, actual, "routes", plan.names[node])
    marks = range(1, (max_next_hops(plan, node) if chooser != KERNEL and max_next_hops(plan, node) > 1 else 0) + 1)
    wanted_rules = {(FIRST_RULE + way, way, str(FIRST_TABLE + way)) for way in marks}
    found_rules = {(entry["priority"], int(entry["fwmark"], 0), entry["table"]) for entry in rules if "fwmark" in entry}
    _same(wanted_rules, found_rules, "rules", plan.names[node])
    if chooser == NFT and nft_text(plan, node):
        with inside(spaces[namespace_name(node)]):
            listed = run_tool(["nft", "list", "ruleset"])
        wanted_draws = sorted(_draws(nft_text(plan, node)))
        if sorted(_draws(listed)) != wanted_draws:
            raise TestbedError(
                f"nftables rules of {plan.names[node]} differ from the plan",
                namespace_name(node),
                "; ".join(wanted_draws),
            )


def _hops(route: JsonView) -> tuple[tuple[str, str], ...]:
    several = route.get("nexthops")
    return (
        tuple((hop["gateway"], hop["dev"]) for hop in several)
        if several
        else ((route.get("gateway", ""), route.get("dev", "")),)
    )


def _draws(text: str) -> list[str]:
    return [line[line.index("numgen") :].strip() for line in text.splitlines() if "numgen" in line]


def _same(expected: set[Any], actual: set[Any], kind: str, node: str) -> None:
    missing, extra = sorted(expected - actual), sorted(actual - expected)
    if missing or extra:
        first = f"{missing[0]} is missing" if missing else f"{extra[0]} is unexpected"
        raise TestbedError(f"{kind} of {node} in the kernel: {first}", node, f"{len(expected)} {kind}")
