"""Builds the printed tables and advice of `gradwire probe` from a probe's results and a scenario's choice of
backend.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from gradwire.emu.planning.backend_choice import BackendChoice
from gradwire.emu.planning.kernel_features import PACKAGES, KernelFeatures
from gradwire.scenarios.advice import build_kernel

USES = {
    "htb": "rate and strict priorities: backends red and bpf",
    "bfifo": "limits in bytes: red and bpf",
    "red": "marks and selective drop: red",
    "netem": "latency of cables: red and bpf",
    "clsact": "programs at ports: bpf",
    "bpf": "marks and selective drop: bpf",
    "u32": "queues by DSCP: red",
    "mirred": "cables with latency: red",
}
"""Purposes of features in the testbed; the others are listed for completeness."""


def probe_tables(kernel: KernelFeatures, choice: BackendChoice | None = None, choice_error: str = "") -> RenderableType:
    """Return all results as rich renderables.

    choice_error : why no backend can run the scenario.
    """
    parts: list[RenderableType] = [_machine(kernel), _features(kernel), _tools(kernel)]
    if choice is not None:
        parts.append(_choice(choice))
    if choice_error:
        parts.append(f"[red]{escape(choice_error)}[/red]")
    parts.extend(f"[yellow]{escape(line)}[/yellow]" for line in advice(kernel))
    return Group(*parts)


def advice(kernel: KernelFeatures) -> list[str]:
    """Return suggestions that would make more features available."""
    lines = []
    packages = kernel.missing_packages()
    if packages:
        lines.append(f"apt install {' '.join(packages)}")
    if not kernel.root:
        lines.append(
            "as root: BPF programs, captures, real-time priorities, and namespaces where users may not create them"
        )
    if not kernel.uml:
        lines.append(
            f"{build_kernel()}: a kernel for virtual time, which has every feature, needs no root and does not depend "
            "on the machine's speed"
        )
    if kernel.timer_late_us[1] > 1000:
        lines.append(
            f"timers are late by {kernel.timer_late_us[1]:.0f} us (99 %): runs on the wall clock will be noisy"
        )
    return lines


def _machine(kernel: KernelFeatures) -> Table:
    table = Table(title="this machine", show_header=False)
    lateness = kernel.timer_late_us
    rate = {-1: "not tried", 0: "below 50 Mbit/s"}.get(
        kernel.reachable_bps, f"{kernel.reachable_bps / 1e6:g} Mbit/s with one port"
    )
    for name, value in (
        ("kernel", f"{kernel.release} on {kernel.machine}"),
        ("processors", str(kernel.cores)),
        ("user", "root" if kernel.root else "not root"),
        ("private namespaces", kernel.namespaces or "yes"),
        ("timer lateness", f"median {lateness[0]:g} us, 99 % {lateness[1]:g} us, max {lateness[2]:g} us"),
        ("idle states disabled", kernel.awake or "yes"),
        ("sustained rate", rate),
        ("virtual time", kernel.uml or "no kernel"),
        ("TUN", kernel.tun or "yes"),
        ("BPF program", kernel.bpf or "yes"),
        ("nftables numgen", kernel.nft_numgen or "yes"),
        ("TCP", ", ".join(kernel.congestion)),
    ):
        table.add_row(name, escape(value))
    return table


def _features(kernel: KernelFeatures) -> Table:
    table = Table("kind", "name", "works", "used for", title="traffic control")
    for kind, features in (("qdisc", kernel.qdiscs), ("classifier", kernel.classifiers), ("action", kernel.actions)):
        for name, reason in features.items():
            works = "[green]yes[/green]" if not reason else f"[red]no[/red]: {escape(reason)}"
            table.add_row(kind, name, works, USES.get(name, ""))
    return table


def _tools(kernel: KernelFeatures) -> Table:
    table = Table("command", "version", "package", title="commands")
    for name, version in kernel.tools.items():
        table.add_row(name, escape(version) or "[red]missing[/red]", PACKAGES[name])
    return table


def _choice(choice: BackendChoice) -> Table:
    table = Table("backend", "", title="this scenario")
    table.add_row(
        f"[green]{choice.name}[/green]",
        "\n".join(escape(reason) for reason in choice.substitutions) or "exactly the scenario",
    )
    for name, reasons in choice.why_not.items():
        table.add_row(f"not {name}", "\n".join(escape(reason) for reason in reasons))
    return table
