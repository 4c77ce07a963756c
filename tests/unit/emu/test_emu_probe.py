"""The probe finds what is there, says why not, and the choice of a backend follows from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from typing import Any

import emu_cases as cases
import pytest
from emu_cases import needs, star, why_not
from rich.console import Console
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.emu.agent.nic import MAKE_UP_NS
from gradwire.emu.planning import backend_choice as choosing
from gradwire.emu.planning import probe as probing
from gradwire.emu.planning import probe_report
from gradwire.emu.planning.backend_choice import BackendChoice, select_backend
from gradwire.emu.planning.kernel_features import KernelFeatures
from gradwire.emu.planning.plan import Change, Queues
from gradwire.emu.planning.probe import probe, virtual_kernel
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.linux_network import queueing

QDISCS = ("htb", "bfifo", "red", "netem", "clsact", "prio")


def full(**changes: Any) -> KernelFeatures:
    """A usual kernel: it has everything."""
    kernel = KernelFeatures(
        release="6.8", machine="x86_64", cores=8, root=True, namespaces="", qdiscs=dict.fromkeys(QDISCS, ""),
        classifiers=dict.fromkeys(("u32", "bpf"), ""), actions={"mirred": ""}, nft_numgen="", bpf="", tun="",
        congestion=("cubic",), tools=dict.fromkeys(("ip", "tc", "nft", "clang"), "1.0"), reachable_bps=400_000_000,
    )  # fmt: skip
    return replace(kernel, **changes)


def without(table: str, *names: str) -> KernelFeatures:
    kernel = full()
    return replace(kernel, **{table: {**getattr(kernel, table), **dict.fromkeys(names, "unknown kind")}})


@pytest.fixture
def only_kernel_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "BACKENDS", ("bpf", "red"))


@needs("namespaces")
def test_probe_results_match_direct_attempts() -> None:
    start = time.monotonic()
    found = probe()
    assert time.monotonic() - start < 15, "1.5 s on a quiet machine"
    assert found.namespaces == "" and found.root == (os.geteuid() == 0) and not found.virtual
    for name in ("red", "netem", "prio"):
        assert (found.qdiscs[name] == "") == (cases._qdisc_missing(name) is None), name
    assert found.has("qdisc", "htb") == (cases._qdisc_missing("htb default 1") is None)
    assert (found.tun == "") == (why_not("tun") is None)
    assert found.has("tool", "tc") and "iproute2" in found.tools["tc"]
    assert (found.awake == "") == os.access("/dev/cpu_dma_latency", os.W_OK)
    low, high, most = found.timer_late_us
    assert 0 <= low <= high <= most
    assert found.reachable_bps in {0, *(rate * 1_000_000 for rate in probing.RATES)}
    if shutil.which("clang") and found.root:
        assert found.bpf == "" and found.has("classifier", "bpf")
    assert json.loads(json.dumps(found.to_json()))["qdiscs"] == dict(found.qdiscs)


@needs("namespaces", "tool:setpriv")
def test_probe_of_an_unprivileged_user_advises_to_run_as_root(tmp_path: Any) -> None:
    """The probe runs as user nobody, with modules found through PYTHONPATH."""
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "gradwire.emu.planning.probe"],
        capture_output=True, text=True, timeout=60, cwd="/",
        env=os.environ | {"PYTHONPATH": str(cases.ROOT), "HOME": "/", "XDG_CACHE_HOME": str(tmp_path / "no")},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"other users cannot run this Python: {done.stderr.strip()[-100:]}")
    found = json.loads(done.stdout)
    assert found["root"] is False and (found["bpf"] != "")
    kernel = KernelFeatures(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    assert any("as root" in line for line in probe_report.advice(kernel))


@pytest.mark.usefixtures("only_kernel_backends")
def test_probe_reports_missing_unshare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.emu.system.namespaces.find_tool", lambda name: None)
    monkeypatch.setattr(probing, "find_tool", lambda name: None)
    found = probe(rates=False)
    assert found.namespaces == "command not found: unshare"
    assert found.missing_packages() == sorted(set(probing.PACKAGES.values()))
    with pytest.raises(
        TestbedError,
        match=r"cannot create private namespaces .*command not found: unshare.*expected the package util-linux",
    ):
        select_backend(star(2), found)


def test_hanging_probe_is_ended_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "python_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(probing, "LIMIT_S", 0.5)
    if reason := why_not("namespaces"):
        pytest.skip(reason)
    assert probe(rates=False).namespaces == "no answer within 0.5 s"


@pytest.mark.usefixtures("only_kernel_backends")
def test_select_backend_prefers_bpf_and_reports_reasons_against_red() -> None:
    marked = Queues(8, 64_000, (10_000,) * 8, True)
    best = select_backend(star(2, queues=marked, clock="virtual"), full())
    assert best == BackendChoice("bpf", best.why_not, []) and "buffer" in " ".join(best.why_not["red"])
    no_bpf = select_backend(star(2, queues=marked), full(bpf="command not found: clang"))
    assert no_bpf.name == "red" and no_bpf.why_not == {"bpf": ["no BPF program: command not found: clang"]}
    assert any("a buffer of 64000 bytes" in line for line in no_bpf.substitutions)


def test_select_backend_picks_the_fewest_substitutions_then_exact_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind:
        def __init__(self, *said: str, keeps_time: bool = False) -> None:
            self.said, self.keeps_time = list(said), keeps_time

        def missing(self, kernel: KernelFeatures, plan: Any) -> list[str]:
            return []

        def substitutions(self, kernel: KernelFeatures, plan: Any) -> list[str]:
            return self.said

    kinds = {"bpf": Kind("one", "two"), "red": Kind("one", "two"), "userspace": Kind("one")}
    monkeypatch.setattr(choosing, "backend_kind_of", kinds.__getitem__)
    got = select_backend(star(2), full())
    assert (got.name, got.substitutions) == ("userspace", ["one"])
    assert got.why_not["bpf"] == ["departs further from the scenario: two"]
    kinds["userspace"] = Kind("one", "two", keeps_time=True)
    assert select_backend(star(2), full()).name == "userspace", "of equals one that keeps time"
    assert select_backend(star(2, clock="virtual"), full()).name == "bpf", "or the first"
    kinds["bpf"] = Kind("one")
    assert select_backend(star(2), full()).name == "bpf", "but fewer departures come first"


@pytest.mark.parametrize("name", ["bpf", "red", "userspace"])
def test_hosts_send_further_ahead_than_ports_release_packets(name: str) -> None:
    """A port of the kernel takes its slack at once; when half of the send-ahead is left, more is sent."""
    for rate in (50_000_000, 100_000_000, 1_000_000_000):
        plan = star(2, rate=rate)
        taken = queueing.slack_bytes(plan, plan.ports[0]) * 8e9 / rate if name != "userspace" else 0
        assert choosing.backend_kind_of(name).ahead_ns / 2 >= taken + MAKE_UP_NS


@pytest.mark.usefixtures("only_kernel_backends")
def test_select_backend_names_missing_kernel_features() -> None:
    marked = Queues(8, 64_000, (10_000,) * 8, True)
    with pytest.raises(TestbedError, match="no qdisc red \\(unknown kind\\)"):
        select_backend(star(2, queues=marked), without("qdiscs", "red"), "red")
    assert select_backend(star(2), without("qdiscs", "red"), "red").name == "red", "nothing to mark: not needed"
    with pytest.raises(TestbedError, match="no qdisc htb"):
        select_backend(star(2), without("qdiscs", "htb"))
    with pytest.raises(TestbedError, match="no classifier u32"):
        select_backend(star(2), without("classifiers", "u32"), "red")
    with pytest.raises(TestbedError, match="no qdisc netem"):
        select_backend(star(2, loss={(0, 2): 0.1}), without("qdiscs", "netem"), "red")
    cut = replace(star(2), changes=(Change(10**6, ((0, 1.0),)), Change(2 * 10**6, ((0, 0.0),))))
    for needed in ("netem", "clsact"):
        with pytest.raises(TestbedError, match=f"no qdisc {needed}"):
            select_backend(cut, without("qdiscs", needed), "red")
    told = select_backend(cut, full(), "red").substitutions
    assert not any("drawn by netem" in each for each in told), "a cut cable draws nothing"
    spraying = star(2, balancing="spray_random")
    with pytest.raises(TestbedError, match="cannot spray packets: no numgen"):
        select_backend(spraying, full(nft_numgen="no numgen"), "red")
    assert select_backend(spraying, full(nft_numgen="no numgen"), "bpf").name == "bpf"
    with pytest.raises(TestbedError, match="unknown switch backend 'ovs'"):
        select_backend(star(2), full(), "ovs")
    two = cases.make_plan(1, 2, [(0, 1), (0, 2)])
    with pytest.raises(TestbedError, match="hosts with several cables, such as h0"):
        select_backend(two, full())


@pytest.mark.usefixtures("only_kernel_backends")
def test_substitutions_are_reported_with_numbers() -> None:
    plan = star(2, rate=10_000_000_000, latency_ps=2_000_000)
    said = " | ".join(select_backend(plan, without("qdiscs", "netem"), "bpf").substitutions)
    assert "no netem: cables have no latency (the scenario has 2 us)" in said and "1 us earlier" in said
    assert "10000 Mbit/s, but this machine sustained only 400" in said
    assert select_backend(replace(plan, clock="virtual"), virtual_kernel(), "red").name == "red"


def test_probe_tables_show_reasons_and_packages() -> None:
    out = StringIO()
    kernel = replace(
        without("qdiscs", "netem"), tools={"tc": "6.1", "clang": ""}, bpf="command not found: clang", uml=""
    )
    choice = BackendChoice("red", {"bpf": ["no BPF program: [x]"]}, ["red: every queue"])
    Console(file=out, width=200).print(probe_report.probe_tables(kernel, choice, "nothing [works]"))
    text = out.getvalue()
    for words in (
        "netem",
        "no: unknown kind",
        "apt install clang",
        "make uml",
        "no BPF program: [x]",
        "every queue",
        "nothing [works]",
    ):
        assert words in text, words


def test_probe_command_lists_all_substitutions_of_a_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """This includes networks for programs and substitutions independent of the switch backend."""
    monkeypatch.setattr(probing, "probe", full)
    cut = '[[fault]]\nkind = "link_down"\nbetween = ["h0", "s0"]\nat = "1s"\n'
    small = 'name = "x"\ntopology = { kind = "star", hosts = 3 }\nlink = { rate = "10Mbps" }\nhost = { software_latency = "1ms" }\n'
    traffic = '[[traffic]]\nname = "in"\nkind = "incast"\nfan_in = 2\nsize = "5kB"\n'
    for text, words in (
        (small + "[exec]\ncompute = \"measured\"\n", "computing takes real time"), (small + traffic + cut, "cut cable"),
    ):  # fmt: skip
        (tmp_path / "x.toml").write_text(text)
        done = CliRunner().invoke(app, ["probe", str(tmp_path / "x.toml"), "--json"])
        assert done.exit_code == 0, done.stdout
        assert any(words in line for line in json.loads(done.stdout)["choice"]["substitutions"])


def test_only_userspace_switch_ports_keep_exact_time() -> None:
    """Kernel ports compensate for late timers by running ahead; the userspace switch computes departure times."""
    assert [name for name in choosing.BACKENDS if choosing.backend_kind_of(name).keeps_time] == ["userspace"]
