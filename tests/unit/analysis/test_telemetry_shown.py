"""What `gradwire telemetry` makes of a Result, against tables small enough to work out by hand; captures are read back by
scapy, which knows nothing of us."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from analysis_cases import messages, small_result
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.pcap.packet_capture import checksum, host_names, write_capture
from gradwire.analysis.pcap.pcapng import Frames, write_pcapng
from gradwire.analysis.telemetry.telemetry import (
    chosen_ports,
    describe,
    drops,
    hop_of,
    layers,
    queues,
    series,
    waiting_times,
)
from gradwire.analysis.telemetry.telemetry_plot import draw_telemetry
from gradwire.emu.wire.scapy_layer import Gradwire
from gradwire.result_store.result import Result
from gradwire.scenarios import wire
from gradwire.scenarios.errors import ResultError

GBPS = 10**9


def result(**tables: Any) -> Result:
    """`small_result` with more tables."""
    plain = small_result()
    every = {name: getattr(plain, name).to_pydict() for name in ("messages", "iterations", "ports")}
    summary = plain.summary | {
        "sample_period_ps": 1000,
        "transports": {"j": {"kind": "dctcp", "payload": 100, "overhead": 66, "wire": "tcp"}},
    }
    return Result.build(summary, every | tables)


def sampled() -> dict[str, Any]:
    """Two ports of 8 Gbit/s, every 1000 ps 1 byte each; at 1000, 2000 and 5000 ps."""
    return {
        "time_ps": [1000, 1000, 2000, 2000, 5000, 5000],
        "port": ["a->b", "b->c"] * 3,
        "queue_bytes": [7, 0, 9, 0, 2, 0],
        "sent_bytes": [1, 0, 1, 0, 5, 1],
        "rate_bps": [8 * GBPS, 16 * GBPS] * 3,
    }


def lost() -> dict[str, Any]:
    return {
        "message": [1, 1, 2, 4], "packet": [0, 1, -1, 3], "port": ["a->b", "a->b", "b->c", "b->c"],
        "time_ps": [1, 2, 3, 4], "cause": ["tail", "tail", "link_down", "evicted"],
        "important": [True, True, True, False], "priority": [0, 0, 0, 2],
    }  # fmt: skip


def delays() -> dict[str, Any]:
    """At leaf0 98 packets below 10 ps, 1 below 20; at leaf1 1 below 40."""
    return {
        "port": ["leaf0->h1", "leaf0->h1", "leaf1->h9"], "from_ps": [0, 10, 20], "to_ps": [10, 20, 40],
        "packets": [98, 1, 1],
    }  # fmt: skip


def test_queue_and_utilisation_series_match_hand_computed_values():
    first, second = series(result(samples=sampled()))
    assert (first.port, first.period_ps) == ("a->b", 1000)
    assert first.queue_bytes.tolist() == [0, 7, 9, 0, 0, 2]
    assert first.utilisation.tolist() == [0, 1, 0, 0, 0, 1]  # 4 bytes in a period of 1: the rest comes later
    assert second.utilisation.tolist() == [0, 0, 0, 0, 0, 0.5]
    assert [each.port for each in series(result(samples=sampled()), ["b->c"])] == ["b->c"]
    assert series(result()) == []


def seldom(period: int | None, times: list[int], sent: list[int]) -> Result:
    """One port of 8 Gbit/s that had something to tell at these times only."""
    n = len(times)
    table = {
        "time_ps": times,
        "port": ["a->b"] * n,
        "queue_bytes": [4] * n,
        "sent_bytes": sent,
        "rate_bps": [8 * GBPS] * n,
    }
    made = result(samples=table)
    return Result.build(made.summary | {"sample_period_ps": period}, {"samples": table})


def test_series_use_the_sampling_period_of_the_scenario():
    (found,) = series(seldom(1000, [6000, 9000], [1, 2]))  # their greatest common divisor is 3000
    assert found.period_ps == 1000
    assert found.queue_bytes.tolist() == [0, 0, 0, 0, 0, 0, 4, 0, 0, 4]
    assert found.utilisation.tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    with pytest.raises(ResultError, match="samples that are not at multiples of 4ns"):
        series(seldom(4000, [6000], [1]))
    with pytest.raises(ResultError, match="does not record its sampling period"):
        series(seldom(None, [6000], [1]))


def test_packet_longer_than_a_period_occupies_several_periods():
    """Two packets of 3 periods follow each other, then comes one of one and a half."""
    (found,) = series(seldom(10**6, [2 * 10**6, 5 * 10**6, 9 * 10**6, 12 * 10**6], [3000, 6000, 7500, 7500]))
    assert found.utilisation.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0.5, 0, 0]


def test_port_figures_match_hand_computed_values():
    entries = queues(result(samples=sampled()))
    assert [entry["port"] for entry in entries] == ["b->c", "a->b"]  # the deepest first
    assert entries[1] == {
        "port": "a->b", "packets": 30, "bytes": 3000, "peak_queue_bytes": 500, "mean_queue_bytes": 3.0,
        "p99_queue_bytes": 9, "mean_utilisation": 0.4, "max_utilisation": 1.0,
    }  # fmt: skip
    assert queues(result(), ["a->b"]) == [{"port": "a->b", "packets": 30, "bytes": 3000, "peak_queue_bytes": 500}]


def test_waiting_times_match_hand_computed_percentiles():
    by_hop = waiting_times(result(delays=delays()), by_hop=True)
    assert by_hop == [{"hop": "leaf->h", "packets": 100, "p50_ps": 10, "p99_ps": 20, "p999_ps": 40, "max_ps": 40}]
    assert [entry["max_ps"] for entry in waiting_times(result(delays=delays()))] == [20, 40]
    assert waiting_times(result(delays=delays()), ["leaf1->h9"])[0]["packets"] == 1
    assert hop_of("h12.nic3->rail3") == "h.nic->rail"


def test_drops_and_layers_are_counted_by_cause_and_priority():
    found = result(drops=lost())
    assert drops(found)[0] == {"cause": "tail", "priority": 0, "important": True, "data": True, "packets": 2}
    assert [entry["cause"] for entry in drops(found, ["b->c"])] == ["evicted", "link_down"]
    assert layers(found) == [
        {"layer": 0, "priority": 0, "messages": 4, "packets": 40, "marked": 4, "trimmed": 2, "lost": 3},
        {"layer": 1, "priority": 0, "messages": 1, "packets": 10, "marked": 0, "trimmed": 0, "lost": 0},
    ]
    mixed = small_result(messages(priority=[0, 1, 0, 0, 0]))
    assert [(entry["layer"], entry["priority"]) for entry in layers(mixed)] == [(0, 0), (0, 1), (1, 0)]


def test_ports_can_be_selected_by_node_name():
    assert chosen_ports(result(), ["b"]) == ["b->c"]
    assert chosen_ports(result(), []) == ["a->b", "b->c"]
    with pytest.raises(ResultError, match="no such port or node: c, b->a"):
        chosen_ports(result(), ["c", "a", "b->a"])


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["telemetry", *arguments])


def test_telemetry_command_prints_plots_and_refuses_invalid_options(own_directory: Path):
    result(samples=sampled(), delays=delays(), drops=lost()).write("one")
    shown = run("one", "--plot", "one.png")
    assert shown.exit_code == 0, shown.output
    for words in ("9 B", "link down", "droppable", "< 40 ps", "single packets"):
        assert words in shown.output, words
    assert max(map(len, shown.output.splitlines())) <= 100
    assert Path("one.png").read_bytes()[:4] == b"\x89PNG"
    as_json = run("one", "--json")
    assert json.loads(as_json.stdout) == json.loads(json.dumps(describe(Result.read("one"))))
    again = run("one", "--plot", "one.png")
    assert again.exit_code == 2 and "exists already" in again.output
    assert "no such port" in run("one", "--port", "nowhere").output
    result().write("plain")
    for option in ("--plot", "--pcap"):
        refused = run("plain", option, "file.png")
        assert refused.exit_code == 2 and "output." in refused.output and not Path("file.png").exists()


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml"), ("a.jpg", b"\xff\xd8\xff"), ("a.EPS", b"%!PS")],
)
def test_telemetry_figure_format_follows_the_file_name(name: str, begins: bytes, tmp_path: Path):
    draw_telemetry(result(samples=sampled()), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
    draw_telemetry(result(samples=sampled()), tmp_path / f"again-{name}")
    if name != "a.EPS":  # which has the time in it
        assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()


@pytest.mark.parametrize("name", ["a.gif", "a", "a.txt"])
def test_unknown_figure_formats_are_refused(name: str, tmp_path: Path):
    with pytest.raises(ResultError, match=r"is not a figure format.*one of \.png, \.pdf, \.svg"):
        draw_telemetry(result(samples=sampled()), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_telemetry_figure_draws_samples_or_delays_alone(tmp_path: Path):
    assert draw_telemetry(result(samples=sampled()), tmp_path / "a.png") == ["a->b"]
    assert draw_telemetry(result(delays=delays()), tmp_path / "b.png") == []
    one, other = ((tmp_path / name).read_bytes()[16:24] for name in ("a.png", "b.png"))
    assert struct.unpack(">II", one)[1] > struct.unpack(">II", other)[1]


# --- captures


def test_capture_header_lengths_equal_simulated_ones():
    assert wire.header_bytes("ethernet") == wire.ETHERNET and wire.header_bytes("ipv4") == wire.IPV4
    assert wire.header_bytes("udp") == wire.UDP and wire.header_bytes("tcp") == wire.TCP
    assert wire.header_bytes("gradwire") == wire.GRADWIRE and wire.header_bytes("bth") == wire.BTH
    assert wire.header_bytes(*wire.WIRES["tcp"]) == wire.TCP_OVERHEAD
    assert wire.header_bytes(*wire.WIRES["udp"]) == wire.UDP_OVERHEAD
    assert wire.header_bytes(*wire.WIRES["roce"]) + wire.ICRC == wire.ROCE_OVERHEAD


PACKETS = [
    # start_ps, port, message, kind, packet, bytes, priority, important, marked, trimmed, echo, argument, lost
    (5_000_999, "a->b", 0, "data", 9, 166, 0, True, False, False, False, 0, False),
    (5_000_999_000_000_000, "b->c", 0, "data", 9, 166, 0, True, True, False, False, 0, False),
    (7_000_000, "b->c", 0, "ack", -1, 66, 1, True, False, False, True, 4, False),
    (8_000_000, "a->b", 1, "data", 2, 158, 7, False, False, False, False, 0, True),
    (8_000_001, "a->b", 1, "ack", -1, 60, 7, True, False, False, False, 0, False),
    (9_000_000, "a->b", 3, "data", 0, 158, 3, True, False, False, False, 0, False),
    (9_000_001, "a->b", 3, "nack", -1, 62, 3, True, False, False, False, 5, False),
    (9_000_002, "b->c", -1, "pause", -1, 64, 0, False, False, False, False, 0b101, False),
]  # fmt: skip
COLUMNS = (
    "start_ps", "port", "message", "kind", "packet", "bytes", "priority", "important", "marked", "trimmed", "echo",
    "argument", "lost",
)  # fmt: skip


def captured(path: Path, chosen: list[str] | None = None) -> list[tuple[Any, Any]]:
    table = dict(zip(COLUMNS, map(list, zip(*PACKETS, strict=True)), strict=True))
    made = result(
        packets=table,
        messages=messages(
            job=["t", "u", "t", "r", "t"], src=["h2", "h10", "h2", "h2", "h2"], dst=["h10", "h2"] * 2 + ["h1"]
        ),
    )
    made.summary["transports"] = {
        "t": {"kind": "dctcp", "payload": 100, "overhead": 66, "wire": "tcp"},
        "u": {"kind": "dlcp", "payload": 100, "overhead": 58, "wire": "udp"},
        "r": {"kind": "dcqcn", "payload": 100, "overhead": 58, "wire": "roce"},
    }  # fmt: skip
    assert host_names(made) == ["h1", "h2", "h10"]
    count = write_capture(made, path, chosen or ["a->b", "b->c"])
    found = [(Ether(data), meta) for data, meta in RawPcapNgReader(str(path))]
    assert len(found) == count
    return found


def test_capture_holds_times_lengths_and_interfaces(tmp_path: Path):
    found = captured(tmp_path / "x.pcapng")
    assert [meta.wirelen for _, meta in found] == [row[5] for row in PACKETS]
    assert [meta.ifname.decode() for _, meta in found] == [row[1] for row in PACKETS]
    assert {meta.tsresol for _, meta in found} == {10**9}
    times = [(meta.tshigh << 32) + meta.tslow for _, meta in found]
    assert times == [row[0] // 1000 for row in PACKETS]
    assert [len(frame) for frame, _ in found] == [66, 66, 66, 58, 58, 54, 54, 34]
    assert [meta.ifname for _, meta in captured(tmp_path / "y.pcapng", ["b->c"])] == [b"b->c"] * 3


def test_capture_encodes_tcp_headers_and_checksums(tmp_path: Path):
    (data, _), (marked, _), (ack, _) = captured(tmp_path / "x.pcapng")[:3]
    assert (data[IP].src, data[IP].dst, data[IP].len) == ("10.0.0.2", "10.0.0.3", 152)
    assert (ack[IP].src, ack[IP].dst, ack[IP].len) == ("10.0.0.3", "10.0.0.2", 52)
    assert (data[TCP].seq, data[TCP].dataofs, str(data[TCP].flags)) == (900, 8, "A")
    assert (ack[TCP].ack, str(ack[TCP].flags)) == (400, "AE")
    assert (data[TCP].sport, data[TCP].dport) == (ack[TCP].dport, ack[TCP].sport) == (49152, wire.GRADWIRE_PORT)
    assert data[TCP].options == [("NOP", None), ("NOP", None), ("Timestamp", (5, 0))]
    assert [frame[IP].tos for frame in (data, marked, ack)] == [56 << 2 | 2, 56 << 2 | 3, 48 << 2 | 2]
    for frame in (data, ack):  # what scapy works out for itself is the same
        again = frame.copy()
        del again[IP].chksum
        assert Ether(bytes(again))[IP].chksum == frame[IP].chksum
    again = ack.copy()
    del again[TCP].chksum
    assert Ether(bytes(again))[TCP].chksum == ack[TCP].chksum
    whole = data.copy() / bytes(100)
    del whole[TCP].chksum
    assert Ether(bytes(whole))[TCP].chksum == data[TCP].chksum


def test_capture_encodes_gradwire_headers_over_udp(tmp_path: Path):
    (data, _), (ack, _) = captured(tmp_path / "x.pcapng")[3:5]
    assert (data[IP].src, data[UDP].dport, data[UDP].len) == ("10.0.0.3", wire.GRADWIRE_PORT, 124)
    assert data[IP].tos == 0  # the last queue, and droppable
    message, offset, length, sequence, flags = struct.unpack(">IIHIH", bytes(data[UDP].payload))
    assert (message, offset, length, sequence, flags) == (1, 200, 100, 2, 0)
    seen = Ether(bytes(data))[Gradwire]  # the testbed's packets are dissected by the same layer
    assert (seen.message, seen.offset, seen.length, seen.sequence) == (1, 200, 100, 2)
    assert (seen.kind, seen.important, ack[Gradwire].kind, ack[Gradwire].important) == (0, 0, 1, 1)
    assert (ack[IP].len, ack[UDP].len) == (44, 24)  # and two bytes of padding behind
    assert struct.unpack(">IIHIH", bytes(ack[UDP].payload)) == (1, 0, 0, 0, 1 | wire.GRADWIRE_FLAGS["important"])


def test_capture_encodes_roce_and_pause_frames(tmp_path: Path):
    (data, _), (nack, _), (pause, _) = captured(tmp_path / "x.pcapng")[5:]
    assert data[UDP].dport == nack[UDP].sport == wire.ROCE_PORT
    first, nacked = bytes(data[UDP].payload), bytes(nack[UDP].payload)
    assert (first[0], first[8], first[9:12]) == (0, 0x80, b"\0\0\0")  # SEND first, asks for an answer
    assert (nacked[0], nacked[8], nacked[9:12]) == (0x11, 0, b"\0\0\5")
    assert (pause.dst, pause.type) == ("01:80:c2:00:00:01", 0x8808)
    assert struct.unpack(">10H", bytes(pause.payload)) == (0x101, 0xFF, 0xFFFF, 0, 0xFFFF, 0, 0, 0, 0, 0)


def test_pcapng_blocks_are_well_formed(tmp_path: Path):
    """Every block states its length twice in whole words; hosts have names."""
    captured(tmp_path / "x.pcapng")
    data, kinds, at = (tmp_path / "x.pcapng").read_bytes(), [], 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length % 4 == 0 and struct.unpack_from("<I", data, at + length - 4) == (length,)
        kinds.append(kind)
        at += length
    assert at == len(data)
    assert kinds == [0x0A0D0D0A, 1, 1, 4, *[6] * len(PACKETS)]
    assert bytes([10, 0, 0, 3]) + b"h10\0" in data


def test_pcapng_frames_of_unequal_lengths_are_read_back(tmp_path: Path):
    import numpy as np

    lengths = np.array([1, 2, 3, 4, 5, 0])
    data = np.arange(30, dtype=np.uint8).reshape(6, 5) + 1
    with (tmp_path / "x").open("wb") as file:
        made = Frames(np.zeros(6, dtype=np.int64), np.arange(6) << 33, lengths + 100, lengths, data)
        assert write_pcapng(file, ["p"], {}, [made], 5) == 6
    back = list(RawPcapNgReader(str(tmp_path / "x")))
    assert [bytes(got) for got, _ in back] == [bytes(row[:n]) for row, n in zip(data, lengths, strict=True)]
    assert [meta.wirelen for _, meta in back] == (lengths + 100).tolist()
    assert [meta.tshigh for _, meta in back] == [0, 2, 4, 6, 8, 10]


def test_capture_does_not_overwrite_files(tmp_path: Path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(ResultError, match="exists already"):
        captured(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "mine"
    with pytest.raises(ResultError, match="no packet log"):
        write_capture(result(), tmp_path / "y", ["a->b"])


@pytest.mark.parametrize("seed", range(5))
def test_ipv4_checksum_folds_the_carry(seed: int):
    """The reference is RFC 1071 word by word, with words near the maximum."""
    import numpy as np

    draw = np.random.default_rng(seed)
    fields = {name: (1 << 8 * size) - 1 - int(draw.integers(0, 2)) for name, size in wire.HEADERS["ipv4"]}
    fields["checksum"] = 0
    packed = b"".join(fields[name].to_bytes(size, "big") for name, size in wire.HEADERS["ipv4"])
    total = 0
    for (word,) in struct.iter_unpack(">H", packed):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    values = {f"ipv4.{name}": value for name, value in fields.items()}
    assert checksum(values, "ipv4") == total ^ 0xFFFF
    assert checksum({"ipv4.total_length": 0xFFFF, "ipv4.fragment": 0xFFFF}, "ipv4", more=0x1FFFF) == 0xFFFE
