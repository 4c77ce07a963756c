"""The gradwire header: one table, and everything that is made from it says the same."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.emu.wire import header as wire
from gradwire.scenarios import wire as table

scapy = pytest.importorskip("scapy.all", reason="scapy is not installed")

from scapy.layers.inet import IP, TCP, UDP  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402

from gradwire.emu.wire.scapy_layer import Gradwire, GradwireFrame, GradwireStream  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def random_header(rng: random.Random) -> wire.Header:
    return wire.Header(
        rng.randrange(1 << 32), rng.randrange(1 << 32), rng.randrange(1 << 16), rng.randrange(1 << 32), rng.randrange(8),
        *(rng.random() < 0.5 for _ in range(3)),
    )  # fmt: skip


def test_header_packs_to_hand_written_bytes():
    header = wire.Header(
        message=0x01020304,
        offset=0x05060708,
        length=0x090A,
        sequence=0x0B0C0D0E,
        kind=wire.PROBE,
        important=True,
        echo=True,
    )
    assert header.pack().hex() == "0102030405060708090a0b0c0d0e002c"
    assert wire.unpack(header.pack()) == header
    assert wire.Header(1).pack() == struct.pack(">IIHIH", 1, 0, 0, 0, 0)
    assert wire.Header(1 << 32 | 7, offset=(1 << 33) + 5).pack() == struct.pack(">IIHIH", 7, 5, 0, 0, 0)


def test_header_codec_and_scapy_layer_agree():
    rng = random.Random(1)
    for _ in range(500):
        header = random_header(rng)
        data = header.pack()
        assert wire.unpack(b"xx" + data, 2) == header
        seen = Gradwire(data)
        assert (seen.message, seen.offset, seen.length, seen.sequence) == header[:4]
        assert (seen.kind, seen.important, seen.trimmed, seen.echo) == header[4:]
        made = Gradwire(
            message=header.message, offset=header.offset, length=header.length, sequence=header.sequence, kind=header.kind,
            important=int(header.important), trimmed=int(header.trimmed), echo=int(header.echo),
        )  # fmt: skip
        assert bytes(made) == data


def test_scapy_layer_has_the_fields_of_the_table():
    names = [field.name for field in Gradwire.fields_desc if not field.name.startswith("unused")]
    plain = [name for name, _ in table.HEADERS["gradwire"] if name != "flags"]
    assert names == plain + sorted(table.GRADWIRE_FLAGS, key=lambda name: -table.GRADWIRE_FLAGS[name])
    assert len(Gradwire()) == table.header_bytes("gradwire") == table.GRADWIRE
    assert set(table.GRADWIRE_FIELDS) == set(table.PACKET_KINDS)


def test_scapy_dissects_datagrams_with_padding_and_payload():
    ack = wire.Header(3, sequence=9, kind=wire.ACK, important=True, echo=True)
    frame = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=7117, dport=49155) / (ack.pack() + bytes(2))
    assert len(frame) == table.MIN_FRAME
    seen = Ether(bytes(frame))[Gradwire]
    assert (seen.message, seen.sequence, seen.kind, seen.echo, bytes(seen.payload)) == (3, 9, wire.ACK, 1, bytes(2))
    data = wire.Header(3, 4096, 5, 1).pack() + b"hello"
    seen = Ether(bytes(Ether() / IP() / UDP(sport=49152, dport=7117) / data))[Gradwire]
    assert (seen.offset, bytes(seen.payload)) == (4096, b"hello")


def frames_of(rng: random.Random, count: int) -> list[tuple[wire.Header, bytes]]:
    found = []
    for _ in range(count):
        content = rng.randbytes(rng.choice([0, 0, 1, 1024]))
        found.append((random_header(rng)._replace(length=len(content)), content))
    return found


def test_stream_frames_are_reassembled_from_any_fragmentation():
    rng = random.Random(2)
    sent = frames_of(rng, 60)
    data = b"".join(header.pack() + content for header, content in sent)
    for largest in (1, 7, 100, len(data)):
        frames, got, at = wire.Frames(), [], 0
        while at < len(data):
            step = rng.randint(1, largest)
            got += list(frames.feed(data[at : at + step]))
            at += step
        assert got == sent


def test_scapy_dissects_stream_frames_of_a_tcp_segment():
    sent = frames_of(random.Random(3), 5)
    data = b"".join(header.pack() + content for header, content in sent)
    segment = Ether(bytes(Ether() / IP() / TCP(sport=50000, dport=7118) / data))
    frames = segment[GradwireStream].frames
    assert all(isinstance(frame, GradwireFrame) for frame in frames)
    assert [(f.message, f.sequence, f.kind, bytes(f.payload)) for f in frames] == [
        (header.message, header.sequence, header.kind, content) for header, content in sent
    ]
    cut = Ether(bytes(Ether() / IP() / TCP(sport=7118, dport=50000) / data[:-3]))
    assert len(cut[GradwireStream].frames) in (4, 5)


def test_tos_byte_encodes_priority_and_importance():
    assert [table.tos_byte(queue, True) for queue in (0, 1, 7)] == [0xE2, 0xC2, 0x02]
    assert [table.tos_byte(queue, False) for queue in (0, 7)] == [0xE0, 0x00]


def test_missing_scapy_is_reported_in_one_line():
    code = (
        "import sys; sys.modules['scapy'] = sys.modules['scapy.fields'] = None\n"
        "from gradwire.emu.switches.backend_kind import TestbedError\n"
        "try:\n    import gradwire.emu.wire.scapy_layer\n"
        "except TestbedError as error:\n    print(error.what, '|', error.expected, '|', error.usage)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "scapy is not installed | pip install -e '.[emu]' (in the folder of gradwire) | True\n", (
        done.stderr
    )


def test_agents_import_no_heavy_packages():
    """Agents start fast and need no optional packages. The rules of a transport import pydantic with its table, once
    before agents are forked."""
    code = (
        "import sys, gradwire.emu.control.controller, gradwire.emu.control.launchers, gradwire.emu.agent.agent, gradwire.emu.transports.tcp\n"
        "import gradwire.emu.transports.datagrams, gradwire.emu.wire.header\n"
        "print(sorted({'numba', 'pydantic', 'pyarrow', 'simpy', 'networkx', 'torch', 'scapy', 'gradwire.sim.simulate', 'gradwire.jit.engine_cache', 'gradwire.analysis'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stdout + done.stderr
