"""The kernel's ports with BPF as they were asked for: nothing differs unseen, and what their programs are made of."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from bpf_cases import build
from emu_cases import in_private, needs, star

from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.linux_network import bpf_switch as backend
from gradwire.emu.system import bpf
from gradwire.emu.system.namespaces import run_tool
from gradwire.scenarios import wire

pytestmark = needs("bpf")


# read back


CHANGES = {
    "rate": ("tc -n n2 class change dev p1 parent 1: classid 1:1 htb rate 5mbit ceil 5mbit", "1:1"),
    "priority": ("tc -n n2 class change dev p1 parent 2: classid 2:13 htb rate 400gbit ceil 400gbit prio 1", "2:13"),
    "leaf": ("tc -n n2 qdisc change dev p1 parent 2:13 handle 13: bfifo limit 1000", "limit"),
    "leaf kind": ("tc -n n2 qdisc replace dev p1 parent 2:13 handle 99: pfifo limit 10", "queue 3"),
    "root": ("tc -n n2 qdisc del dev p1 root", "root"),
    "classifier": ("tc -n n2 filter del dev p1 parent 2:", "programs []"),
    "far end": ("tc -n n2 filter del dev p1 ingress", "programs []"),
    "mtu": ("ip -n n0 link set p0 mtu 1400", "mtu"),
    "offload": ("ip -n n0 link set p0 gso_max_segs 10", "gso_max_segs"),
    "down": ("ip -n n0 link set p0 down", "not up"),
    "address": ("ip -n n0 address add 10.9.9.9/32 dev p0", "10.9.9.9"),
    "mac": ("ip -n n2 link set p1 address 02:00:00:00:99:99", "address"),
    "neighbour": ("ip -n n0 neigh replace 10.128.0.1 lladdr 02:00:00:00:00:77 dev p0 nud permanent", "lladdr"),
    "host route": ("ip -n n0 route add 10.0.0.9/32 via 10.128.0.1 dev p0 onlink", "10.0.0.9"),
    "time-out": (
        "ip -n n0 route change 10.0.0.0/8 via 10.128.0.1 dev p0 src 10.0.0.1 onlink rto_min 70ms",
        "p0', ()) is missing",
    ),
    "switch route": ("ip -n n2 route del 10.0.0.1/32", "10.0.0.1"),
    "rule": ("ip -n n2 rule add pref 101 fwmark 1 lookup 1001", "rules"),
    "device": ("ip -n n2 link add name other type veth peer name another", "unexpected devices"),
}


def changed(plan: TestbedPlan) -> dict[str, str]:
    """For every change by hand: what `verify` says afterwards."""
    found = {}
    for name, (command, _) in CHANGES.items():
        network = build(plan)
        network.verify()
        run_tool(command.split())
        try:
            network.verify()
            found[name] = ""
        except TestbedError as error:
            found[name] = error.what
        network.close()
    return found


def test_verify_detects_every_manual_change_of_the_bpf_network() -> None:
    found = in_private(changed, star(2))
    for name, (_, word) in CHANGES.items():
        assert word in found[name], (name, found[name])


# programs and maps


def test_bpf_program_is_compiled_once_per_source(tmp_path: Path) -> None:
    first = backend.object_file(tmp_path)
    written = first.stat().st_mtime_ns
    assert backend.object_file(tmp_path) == first and first.stat().st_mtime_ns == written
    other = bpf.compile_program(backend.SOURCE, "".join(bpf.declare(name[:-1], fields) for name, fields in backend.MAPS.items())
                                + "enum { DEVICE = 1, WIRE = 2, GRADWIRE_PORT = 3 };", tmp_path)  # fmt: skip
    assert other != first and set(bpf.read_object(first)) == {"enqueue", "release", "choose"}
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([first.name, other.name])


def test_compiler_and_kernel_errors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f( {")
    with pytest.raises(TestbedError, match="clang failed"):
        bpf.compile_program(tmp_path / "bad.c", cache=tmp_path)
    (tmp_path / "no.o").write_bytes(b"text")
    with pytest.raises(ValueError, match="not an object file"):
        bpf.read_object(tmp_path / "no.o")
    endless = bpf.ProgramSection(struct.pack("<BBhi", 0x05, 0, -1, 0), ())  # jumps to itself
    with pytest.raises(TestbedError, match="rejects the BPF program loop"):
        bpf.load(endless, {}, "loop")


def test_header_offsets_match_those_of_the_bpf_program() -> None:
    sizes = dict(wire.HEADERS["gradwire"])
    names = list(sizes)
    assert sum(sizes[name] for name in names[: names.index("sequence")]) == 10 and sizes["sequence"] == 4
    assert sizes[names[0]] == 4


def test_random_keys_differ_by_seed_kind_and_number() -> None:
    keys = {backend.key(seed, kind, number) for seed in range(4) for kind in (1, 2) for number in range(50)}
    assert len(keys) == 400
