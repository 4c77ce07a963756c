"""What a testbed is asked for before anything is built: rates, names, files, machines, kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from star_cases import star_scenario
from userspace_cases import MBPS, star

from gradwire.emu import testbed
from gradwire.emu.agent.report import Reports
from gradwire.emu.control import supervisor
from gradwire.emu.control.machines import command_of
from gradwire.emu.planning.planner import check_rates, kernel_options
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.userspace_switch.network import UserspaceSwitch
from gradwire.emu.system.capture import file_name
from gradwire.emu.system.namespaces import python_path
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.virtual_time import kernel_build
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.emulation import RealHost
from gradwire.topology.cables import LinkSpec
from gradwire.topology.kinds.graph import from_networkx
from gradwire.workload.resolve import resolve

# rates


@pytest.mark.parametrize(("reachable", "refused"), [(0, True), (99 * MBPS, True), (100 * MBPS, False), (-1, False)])
def test_check_rates_rejects_rates_that_the_machine_cannot_sustain(reachable: int, refused: bool) -> None:
    """A reachable rate of 0 means that every tested rate failed; -1 means that no rate was tested."""
    plan = star(2, rate=100 * MBPS, clock="wall")
    if not refused:
        return check_rates(plan, reachable)
    with pytest.raises(ScenarioError) as caught:
        check_rates(plan, reachable)
    assert "100Mbps" in str(caught.value) and "--clock virtual" in str(caught.value)
    return check_rates(star(2, rate=100 * MBPS, clock="virtual"), reachable)


def test_machine_that_sustains_no_rate_rejects_every_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_emu_probe import full

    monkeypatch.setattr("gradwire.emu.planning.probe.probe", lambda: full(reachable_bps=0))
    scenario = star_scenario(job=[], traffic=[{"kind": "all_to_all", "name": "all", "size": "1kB"}])
    with pytest.raises(ScenarioError, match="sustained none of the rates"):
        testbed.choose_backend(scenario, resolve(scenario), "wall", "userspace")


# the side channel


def test_dlcp_side_channel_over_udp_sets_no_kernel_tcp_options() -> None:
    """Over TCP, its packets need ECN, or selective drop discards them, and a short minimum RTO."""
    slow = {kind: load_scenario("slow-receiver", set=[f'emulation.side_channel="{kind}"']) for kind in ("tcp", "udp")}
    assert kernel_options(slow["tcp"]) == {"min_rto_ns": 200_000, "tcp_ecn": 1}
    assert kernel_options(slow["udp"]) == {"side_channel": "udp"}


# connections


@pytest.mark.parametrize("connections", ["fresh", "persistent"])
def test_plan_uses_persistent_connections_of_the_scenario(connections: str) -> None:
    scenario = star_scenario(
        job=[], traffic=[{"kind": "all_to_all", "name": "all", "size": "1kB"}],
        transport={"kind": "bbr", "connections": connections},
    )  # fmt: skip
    plan = testbed.make_plan(scenario, resolve(scenario), clock="virtual", switch="userspace")
    assert plan.transports[0].persistent == (connections == "persistent")


# names and files


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("s0", "s0.pcapng"), ("rack1/h0", "rack1%2Fh0.pcapng"), ("../../etc/x", "..%2F..%2Fetc%2Fx.pcapng"),
        ("..", "...pcapng"), ("a b", "a b.pcapng"), ("\u4e2d" * 100, None),
    ],
)  # fmt: skip
def test_capture_file_names_stay_inside_the_output_folder(tmp_path: Path, name: str, file: str | None) -> None:
    plan: Any = SimpleNamespace(names=("h0", name))
    made = file_name(plan, 1)
    assert file is None or made == file
    (tmp_path / made).write_bytes(b"")
    assert [each.name for each in tmp_path.iterdir()] == [made]


@pytest.mark.parametrize(
    ("name", "words"),
    [("a\nb", "not one line of text"), (" a", "not one line of text"), ("x" * 101, "too long"), ("a->b", "->")],
)
def test_invalid_node_names_are_rejected(name: str, words: str) -> None:
    networkx = pytest.importorskip("networkx")
    link = LinkSpec(10**9, 10**6, 0.0)
    assert from_networkx(networkx.Graph([("s", "rack1/h0"), ("s", "h1")]), link).names[0] == "rack1/h0"
    with pytest.raises(ScenarioError, match=words):
        from_networkx(networkx.Graph([("s", "rack1/h0"), ("s", name)]), link)


def test_unwritable_capture_does_not_affect_other_captures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.pcapng").write_bytes(b"x")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.pcapng").mkdir()
    raw = RawResults(Reports.empty(0), captures={name: str(tmp_path / f"{name}.pcapng") for name in ("a", "b")})
    (tmp_path / "a.pcapng").unlink()
    (lost,) = testbed._keep_captures(raw, tmp_path / "new")
    assert lost.startswith(f"{tmp_path}/new/a.pcapng: cannot be written: ")
    assert (tmp_path / "new" / "b.pcapng").read_bytes() == b"x"


# machines


def test_ssh_target_that_looks_like_an_option_is_rejected() -> None:
    with pytest.raises(ValueError, match="is an option of ssh"):
        RealHost(name="h0", address="192.0.2.1", ssh="-oProxyCommand=touch x")
    words = command_of(RealHost(name="h0", address="192.0.2.1", ssh="user@node0"))
    assert words[words.index("user@node0") - 1] == "--"


# processes and kernels


def test_exit_reason_names_a_stopped_switch_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        switch = UserspaceSwitch(star(2))
        switch.process, switch._control = sleeper.pid, SimpleNamespace(fileno=lambda: os.open(os.devnull, os.O_WRONLY))  # type: ignore[assignment]
        monkeypatch.setattr("gradwire.emu.switches.userspace_switch.network.STOPPED_S", 0.0)
        assert switch._stopped_for() == 0
        sleeper.send_signal(19)
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
        assert switch._stopped_for() == 0, "just now"
        assert f"its process {sleeper.pid} has been stopped" in switch.exit_reason()
        sleeper.send_signal(18)
        os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)
        assert switch._stopped_for() == 0
    finally:
        sleeper.kill()
        sleeper.wait()


def test_python_path_includes_absolute_entries_of_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("/opt/numpy", "", "near")))
    assert python_path(Path("/x")).split(os.pathsep) == ["/x", "/opt/numpy", os.path.abspath("near")]
    assert supervisor.python_path is python_path


@pytest.mark.parametrize(
    ("path", "words"),
    [("/bin/true", "not a User-Mode Linux kernel"), ("/nowhere", "not a program"), ("/tmp", "not a program")],
)
def test_invalid_kernel_path_is_rejected(monkeypatch: pytest.MonkeyPatch, path: str, words: str) -> None:
    monkeypatch.setenv("GRADWIRE_UML", path)
    with pytest.raises(TestbedError, match=words) as caught:
        kernel_build.find_kernel()
    assert path in str(caught.value)


def test_find_source_accepts_any_existing_tarball_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_build, "TOOLS", ())
    monkeypatch.setattr(kernel_build, "SOURCES", tmp_path)
    with pytest.raises(TestbedError, match="make uml SOURCE="):
        kernel_build.find_source()
    with pytest.raises(TestbedError, match="no such file"):
        kernel_build.find_source(tmp_path / "linux-6.1.tar.xz")
    (tmp_path / "linux-6.1.tar.xz").touch()
    assert kernel_build.find_source(tmp_path / "linux-6.1.tar.xz") == tmp_path / "linux-6.1.tar.xz"


def test_find_source_prefers_the_tested_kernel_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Version 6.12 is not mistaken for 6.1."""
    monkeypatch.setattr(kernel_build, "TOOLS", ())
    monkeypatch.setattr(kernel_build, "SOURCES", tmp_path)
    (tmp_path / "linux-source-6.8.0").mkdir()
    for name in (
        "linux-source-6.8.0/linux-source-6.8.0.tar.bz2",
        "linux-source-6.12.tar.xz",
        "linux-source-6.1.tar.xz",
    ):
        (tmp_path / name).touch()
        assert kernel_build.find_source() == tmp_path / name
    assert [kernel_build.version_of(path) for path in map(Path, ("linux-6.1.tar.xz", "linux-6.12.57.tar.gz", "mine.tar"))] == [
        "6.1", "6.12.57", ""]  # fmt: skip


def test_find_kernel_returns_the_most_recently_requested_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_build, "TOOLS", ())
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path))
    monkeypatch.delenv("GRADWIRE_UML", raising=False)
    assert kernel_build.find_kernel() is None
    tarballs = {version: tmp_path / f"linux-source-{version}.tar.xz" for version in ("6.1", "6.12", "6.6")}
    (tmp_path / "uml").mkdir()
    kernels = {version: tmp_path / "uml" / f"linux-{version}.9-{kernel_build.recipe()}" for version in ("6.1", "6.12")}
    for number, version in enumerate(kernels):
        kernels[version].touch()
        os.utime(kernels[version], ns=(number, number))
    for tarball in tarballs.values():
        tarball.touch()
    assert kernel_build.find_kernel() == kernels["6.12"]
    assert kernel_build.build(tarball=tarballs["6.1"]) == kernels["6.1"] == kernel_build.find_kernel()
    os.utime(kernels["6.1"], ns=(2, 2))  # else within a tick of the file system's clock
    assert kernel_build.existing_kernel(tarballs["6.12"]) == kernels["6.12"] == kernel_build.find_kernel()
    assert kernel_build.existing_kernel(tarballs["6.6"]) is None


def test_kernel_build_reports_dropped_options_that_the_source_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_build, "FRAGMENT", tmp_path / "fragment")
    kconfig = tmp_path / "drivers" / "char" / "Kconfig"
    kconfig.parent.mkdir(parents=True)
    (tmp_path / "fragment").write_text("CONFIG_NET=y\nCONFIG_RANDOM_TRUST_CPU=y\n")
    (tmp_path / "config").write_text("CONFIG_NET=y\n")
    kconfig.write_text("config OTHER\n")
    kernel_build._check_options(tmp_path / "config", tmp_path)
    kconfig.write_text("config RANDOM_TRUST_CPU\n\tbool\n")
    with pytest.raises(TestbedError, match="not accepted: CONFIG_RANDOM_TRUST_CPU=y"):
        kernel_build._check_options(tmp_path / "config", tmp_path)
    kconfig.write_text("config OTHER\n")
    (tmp_path / "config").write_text("")
    with pytest.raises(TestbedError, match="not accepted: CONFIG_NET=y"):
        kernel_build._check_options(tmp_path / "config", tmp_path)


def test_long_kernel_build_reports_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_build, "PROGRESS_S", 0.05)
    said: list[str] = []
    log = tmp_path / "log"
    with log.open("wb") as out:
        kernel_build._call(["sh", "-c", "echo '  CC   main.o'; sleep 0.3"], tmp_path, out, log, said.append)
        with pytest.raises(TestbedError, match="failed"):
            kernel_build._call(["false"], tmp_path, out, log, said.append)
    assert any(line.endswith("CC main.o") for line in said)


@pytest.mark.parametrize(("name", "status"), [("gradwire", 130), ("mine", 1)])
def test_ctrl_c_during_import_exits_with_130_only_for_the_command(tmp_path: Path, name: str, status: int) -> None:
    """SIGINT arrives while the command is being imported. A program that imports gradwire sees its usual
    KeyboardInterrupt."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(100): pass"
    )
    script = f"import sys; sys.argv = ['/bin/{name}']; sys.path.insert(0, {str(tmp_path)!r}); from gradwire import cli"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    if status == 130:
        assert (done.returncode, done.stderr) == (130, "gradwire: interrupted\n")
    else:
        assert done.returncode != 130 and "KeyboardInterrupt" in done.stderr


def test_sigterm_is_deferred_and_exits_with_143(tmp_path: Path) -> None:
    """SIGTERM is deferred like Ctrl-C, and the command exits with 143."""
    script = "import sys, os, signal, time\nfrom gradwire.cli.terminal import for_people\nfrom gradwire.scenarios.interrupt import DeferredInterrupt\n"
    script += "@for_people\ndef work():\n  with DeferredInterrupt() as c:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    script += "    time.sleep(0.1)\n    assert c.is_requested\n    print('kept')\n    c.check()\nwork()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (143, "kept\n", "gradwire: terminated\n")
