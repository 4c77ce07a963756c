"""Ways through the switches: a route per host, and what happens where there are several.

ecmp by the kernel    one route with several next hops; Linux hashes addresses and ports
by a mark             something gives each packet the number of its way, counted from 1, as a mark; rule w sends mark w
                      to the table with the w-th way of every host. The mark comes from nftables (counting, or
                      random) or from a BPF program (`switches/port.c`), which draws from the scenario's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.emu.kernel.devices import space
from gradwire.emu.planning.plan import Plan, host_address, port_address
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.kernel_tcp import metrics_shown
from gradwire.emu.system.namespaces import Namespaces, inside, run_tool
from gradwire.scenarios.json_data import JsonView

FIRST_TABLE = 1000
FIRST_RULE = 100
KERNEL, NFT, BPF = "kernel", "nft", "bpf"
"""Who chooses among several ways."""
NFT_DRAWS = {"spray_round_robin": "inc", "spray_random": "random"}


def _hop(port: int) -> str:
    return f"via {port_address(port ^ 1)} dev p{port} onlink"


def _ways(plan: Plan, node: int) -> dict[int, Sequence[int]]:
    """Of every host: the egress ports of a switch towards it."""
    return {host: ports for (switch, host), ports in sorted(plan.routes.items()) if switch == node and ports}


def most_ways(plan: Plan, node: int) -> int:
    return max((len(ports) for ports in _ways(plan, node).values()), default=0)


def route_lines(plan: Plan, node: int, chooser: str) -> list[str]:
    """`ip` lines of a switch."""
    lines = []
    several = 0
    for host, ports in _ways(plan, node).items():
        address = host_address(host)
        if len(ports) > 1 and chooser == KERNEL:
            hops = " ".join(f"nexthop {_hop(port)}" for port in ports)
            lines.append(f"route add {address}/32 {hops}")
            continue
        lines.append(f"route add {address}/32 {_hop(ports[0])}")
        if len(ports) > 1:
            several = max(several, len(ports))
            lines += [
                f"route add {address}/32 {_hop(port)} table {FIRST_TABLE + way}"
                for way, port in enumerate(ports, 1)
            ]
    lines += [
        f"rule add pref {FIRST_RULE + way} fwmark {way} lookup {FIRST_TABLE + way}"
        for way in range(1, several + 1)
    ]
    return lines


def nft_text(plan: Plan, node: int) -> str:
    """nftables' rules of a switch that sprays; "" where every host has one way."""
    groups: dict[int, list[str]] = {}
    for host, ports in _ways(plan, node).items():
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


def make_rules(plan: Plan, spaces: Namespaces, chooser: str) -> None:
    """What deals packets out, where nftables does."""
    for node in range(plan.host_count, plan.node_count):
        text = nft_text(plan, node) if chooser == NFT else ""
        if text:
            with inside(spaces[space(node)]):
                run_tool(["nft", "-f", "-"], text)


def questions(plan: Plan, node: int) -> tuple[str, ...]:
    """What to ask `ip` for `check_node`."""
    return ("route show",) if node < plan.host_count else ("route show table all", "rule show")


def check_node(plan: Plan, node: int, answers: Sequence[Any], spaces: Namespaces, chooser: str) -> None:
    """Compare a node's routes, rules and nftables with what was asked."""
    if node < plan.host_count:
        _check_host(plan, node, answers[0])
    else:
        _check_switch(plan, node, answers[0], answers[1], spaces, chooser)


def _check_host(plan: Plan, node: int, routes: Any) -> None:
    ports = plan.of_node(node)
    metrics = tuple(sorted(kernel_tcp.metrics(plan, kernel_tcp.tick_ns()).items()))
    wanted = {("10.0.0.0/8", port_address(ports[0].number ^ 1), ports[0].device, metrics)} if ports else set()
    found = {
        (each["dst"], each.get("gateway"), each.get("dev"), tuple(sorted(metrics_shown(each).items())))
        for each in routes
    }
    _same(wanted, found, "routes", plan.names[node])


def _check_switch(plan: Plan, node: int, routes: Any, rules: Any, spaces: Namespaces, chooser: str) -> None:
    asked: set[Any] = set()
    for host, ways in _ways(plan, node).items():
        address = host_address(host)
        hops = tuple((port_address(port ^ 1), f"p{port}") for port in ways)
        asked.add((address, "main", hops if chooser == KERNEL else hops[:1]))
        if len(ways) > 1 and chooser != KERNEL:
            asked |= {(address, str(FIRST_TABLE + way), (hop,)) for way, hop in enumerate(hops, 1)}
    found = {
        (each["dst"], str(each.get("table", "main")), _hops(each))
        for each in routes
        if each.get("table") != "local"
        and each.get("type", "unicast") == "unicast"
        and ":" not in each["dst"]
    }
    _same(asked, found, "routes", plan.names[node])
    marks = range(
        1, (most_ways(plan, node) if chooser != KERNEL and most_ways(plan, node) > 1 else 0) + 1
    )
    wanted_rules = {(FIRST_RULE + way, way, str(FIRST_TABLE + way)) for way in marks}
    found_rules = {
        (each["priority"], int(each["fwmark"], 0), each["table"]) for each in rules if "fwmark" in each
    }
    _same(wanted_rules, found_rules, "rules", plan.names[node])
    if chooser == NFT and nft_text(plan, node):
        with inside(spaces[space(node)]):
            listed = run_tool(["nft", "list", "ruleset"])
        wanted_draws = sorted(_draws(nft_text(plan, node)))
        if sorted(_draws(listed)) != wanted_draws:
            raise TestbedError(
                f"nftables of {plan.names[node]} are others than asked for",
                space(node),
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


def _same(wanted: set[Any], found: set[Any], what: str, node: str) -> None:
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    if missing or extra:
        first = f"{missing[0]} is missing" if missing else f"{extra[0]} was not asked for"
        raise TestbedError(
            f"{what} of {node}: {first}, read back from the kernel", node, f"{len(wanted)} {what}"
        )
