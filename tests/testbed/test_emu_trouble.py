"""What `gradwire emulate` refuses, and what it says where a machine lacks rights, tools or room: the real command.

Each time: one clear message on stderr and no traceback, the exit code that tells what kind of trouble it is, and nothing
left behind - no process, no temporary file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from emu_cases import needs
from emu_commands import GRADWIRE, LIMIT_S, NO_RIGHTS, SHORT, USERSPACE, VIRTUAL, Place

from gradwire.result_store.result import Result


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# input and machine: exit code 2, before anything is built


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "no scenario": (("nothing.toml",), "nothing.toml"),
    "no policy": (("short.toml", "--policy", "other"), 'no policy "other"'),
    "no backend": (("short.toml", "--switch", "ovs"), "--switch: unknown backend 'ovs'"),
    "no clock": (("short.toml", "--clock", "fast"), "--clock: unknown clock 'fast'"),
    "no time": (("short.toml", "--max-wall", "soon"), "--max-wall: is not a wall-clock time"),
    "at without pcap": (("short.toml", "--at", "s0"), "--at: needs an output folder"),
    "no node": (("short.toml", "--pcap", "new", "--at", "h9", "--at", "s9"), "--at: no such node: 'h9', 's9'; expected h0,"),
    "pcap exists": (("short.toml", "--pcap", "full"), "full: exists already"),
    "out exists": (("short.toml", "--out", "short.toml"), "short.toml: exists already"),
    "out below a file": (("short.toml", "--out", "short.toml/new"), "short.toml/new: has a parent that is not a folder"),
    "pcap below a file": (("short.toml", "--pcap", "short.toml/new"), "short.toml/new: has a parent that is not a folder"),
    "all and pcap": (("short.toml", "--all", "--pcap", "new"), "--all: cannot be combined"),
    "too many hosts": (("short.toml", "--set", "topology.hosts=100", *VIRTUAL), "topology: 100 hosts"),
    "no sample ports": (("short.toml", "--set", "output.queue_samples=1ms", "--set", 'output.sample_ports=["x"]', *VIRTUAL),
                        "the ports to be sampled are not in the network"),
}  # fmt: skip


@needs("uml")
@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_arguments_are_rejected_in_one_line(place: Place, name: str) -> None:
    arguments, words = MISTAKES[name]
    (place.folder / "full").mkdir()
    (place.folder / "full" / "kept").write_text("of somebody's")
    status, said, error = place.run("emulate", *arguments)
    assert (status, said) == (2, "") and words in error and ("expected" in error or name == "no sample ports")
    assert not (place.folder / "new").exists()


def test_all_unsupported_features_are_named_in_one_error(place: Place) -> None:
    (place.folder / "much.toml").write_text(
        SHORT.replace('"dlcp"', '"hpcc"').replace("selective_drop = true", 'shared_buffer = "64KiB"')
        + """
transport = { kind = "cubic", payload = "1400B", min_rto = "10ms" }
[[traffic]]
kind = "incast"
name = "other"
fan_in = 2
receiver = "h1"
size = "70kB"
transport = { kind = "tcp_newreno", payload = "1400B", min_rto = "20ms" }
[[traffic]]
kind = "incast"
name = "third"
fan_in = 2
receiver = "h2"
size = "70kB"
[output]
packet_log = true
delays = true
""".replace("bound = 0.1\ndroppable = true\n", "")
    )
    text = (place.folder / "much.toml").read_text().replace("bound = 0.1\ndroppable = true\n", "")
    (place.folder / "much.toml").write_text('load_balancing = "flowlet"\n' + text)
    done = subprocess.run(
        [*GRADWIRE, "emulate", "much.toml"], cwd=place.folder, env=place.environment, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert "the testbed cannot run this scenario" in done.stderr, done.stderr
    for where in ("switch.shared_buffer", "load_balancing", "transport: needs what the testbed lacks", "transport.min_rto",
                  "output.packet_log", "output.delays"):  # fmt: skip
        assert f"  {where}" in done.stderr, where


@needs("namespaces")
def test_link_rate_beyond_wall_clock_limit_is_rejected(place: Place) -> None:
    status, _, error = place.run("emulate", "short.toml", "--set", "link.rate=100Gbps", *USERSPACE)
    assert status == 2 and "100Gbps, too fast for this machine on the wall clock; expected at most" in error


def test_switch_backend_missing_in_kernel_is_rejected(place: Place) -> None:
    from emu_cases import why_not

    if not (why_not("qdisc:red") or "").startswith("needs the queueing"):
        pytest.skip("needs a machine without the queueing discipline red")
    status, _, error = place.run("emulate", "short.toml", "--switch", "red")
    assert status == 2 and "red: this kernel has no qdisc red" in error and "--clock virtual" in error


def test_missing_or_invalid_virtual_kernel_is_reported(place: Place) -> None:
    nowhere = str(place.folder / "cache")
    status, _, error = place.run(
        "emulate", "short.toml", *VIRTUAL, GRADWIRE_UML="", XDG_CACHE_HOME=nowhere, HOME=nowhere
    )
    assert status == 2 and error.endswith("no virtual-time kernel; expected make uml, once (a few minutes)")
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, GRADWIRE_UML=nowhere)
    assert status == 2 and f"GRADWIRE_UML={nowhere}: not a program" in error
    (place.folder / "no-kernel").write_text("#!/bin/sh\necho not a kernel\n")
    (place.folder / "no-kernel").chmod(0o755)
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, GRADWIRE_UML=str(place.folder / "no-kernel"))
    assert status == 2 and "not a User-Mode Linux kernel with time travel" in error
    (place.folder / "no-kernel").write_text("#!/bin/sh\necho not a kernel # time-travel\n")
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, GRADWIRE_UML=str(place.folder / "no-kernel"))
    assert status == 1 and error.endswith("the kernel ended early: not a kernel")


@needs("root", "tool:setpriv")
def test_missing_namespace_rights_are_reported(place: Place) -> None:
    """Root in a container may lack the rights to namespaces, and so may any user."""
    status, _, error = place.run("emulate", "short.toml", before=NO_RIGHTS)
    assert status == 2 and len(error) < 300
    assert "cannot create private namespaces (unshare: " in error and "--clock virtual" in error
    status, said, error = place.run("probe", "short.toml", before=NO_RIGHTS)
    assert (status, error) == (1, "") and "cannot create private namespaces" in " ".join(said.split())


@needs("root", "tool:setpriv", "uml")
def test_virtual_time_needs_no_namespace_rights(place: Place) -> None:
    status, said, _ = place.run("emulate", "short.toml", *VIRTUAL, "--json", before=NO_RIGHTS)
    assert status == 0 and json.loads(said)["engines"]["base"]["valid"]


def test_probe_works_with_empty_path(place: Place) -> None:
    status, said, error = place.run("probe", "--json", PATH="/nonexistent")
    assert (status, error) == (0, "") and set(json.loads(said)) == {"kernel"}


TOOLS = """
import sys
import gradwire.emu.system.namespaces
from gradwire import cli
found, missing = gradwire.emu.system.namespaces.find_tool, sys.argv.pop(1)
gradwire.emu.system.namespaces.find_tool = lambda name: None if name == missing else found(name)
import gradwire.emu.planning.probe
gradwire.emu.planning.probe.find_tool = gradwire.emu.system.namespaces.find_tool
cli.main()
"""


@needs("namespaces")
@pytest.mark.parametrize(("tool", "package"), [("ip", "iproute2"), ("unshare", "util-linux")])
def test_a_missing_tool_is_named_with_its_package(place: Place, tool: str, package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOOLS, tool, "emulate", "short.toml"], cwd=place.folder, env=place.environment,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"command not found: {tool}" in done.stderr and package in done.stderr.split("; expected ")[-1]


# full disks


FULL = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def full(size: str, folder: Path) -> list[str]:
    """Before a command: a small file system of memory, that only it sees, at a folder."""
    folder.mkdir(exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", FULL, "sh", size, str(folder)]


@needs("namespaces")
@pytest.mark.parametrize("size", ["4k", "12k"])
def test_full_disk_for_temporary_files_is_reported(place: Place, size: str) -> None:
    """The plan and the runner's records are temporary files."""
    status, _, error = place.run("emulate", "short.toml", *USERSPACE, before=full(size, place.temporary))
    assert status == 2
    assert error == (
        f"gradwire: {place.temporary}: cannot write temporary files: No space left on device; "
        "expected free space, or TMPDIR=FOLDER elsewhere"
    )


@needs("namespaces", "uml")
def test_full_disk_for_temporary_files_is_reported_in_virtual_time(place: Place) -> None:
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, before=full("16k", place.temporary))
    assert status == 2 and "cannot write temporary files: No space left on device" in error


@needs("namespaces", "uml")
def test_missing_space_for_virtual_machine_memory_is_reported(place: Place) -> None:
    small = [*full("10m", Path("/dev/shm")), *full("10m", place.temporary)]
    status, _, error = place.run("emulate", "short.toml", *VIRTUAL, before=small)
    assert status == 2 and "no space for the memory of a virtual machine, 1024 MB" in error


@needs("namespaces")
def test_result_is_saved_elsewhere_if_output_disk_is_full(place: Place) -> None:
    """The measurements are printed as well."""
    small, elsewhere = full("12k", place.folder / "small"), place.folder / "elsewhere"
    elsewhere.mkdir()
    asked = ("emulate", "short.toml", *USERSPACE, "--out", "small/x")
    status, said, error = place.run(*asked, before=small, TMPDIR=str(elsewhere))
    (kept,) = elsewhere.glob("*/x/result.json")
    assert status == 2 and f"small/x: no space left on device; the results are in {kept.parent} instead" in error
    assert "flow completion" in said
    assert Result.read(kept.parent).summary["totals"]["finished"]


@pytest.mark.parametrize(
    "backend", [pytest.param("bpf", marks=needs("bpf")), pytest.param("userspace", marks=needs("namespaces"))]
)
def test_full_disk_for_captures_keeps_the_result(place: Place, backend: str) -> None:
    small = full("60k", place.temporary)
    out = ("--pcap", "new", "--out", "kept")
    status, said, error = place.run("emulate", "short.toml", "--switch", backend, *out, before=small)
    assert status == 2 and "s0.pcapng: cannot be written: No space left on device" in error
    assert "flow completion" in said and Result.read(place.folder / "kept").summary["totals"]["finished"]


def test_tmpdir_invisible_in_namespace_is_rejected(place: Place) -> None:
    if not os.access("/run/lock", os.W_OK):
        pytest.skip("needs a folder below /run that can be written to")
    status, _, error = place.run("emulate", "short.toml", *USERSPACE, TMPDIR="/run/lock")
    assert status == 2 and ("TMPDIR=/run/lock: not visible" in error or "private namespaces" in error)
