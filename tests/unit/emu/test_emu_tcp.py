"""Messages over the kernel's TCP between real hosts: byte for byte, with the right classes, counted by the kernel."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from emu_agents_cases import MBPS, MS, inside, needs_namespaces

from gradwire.emu.wire.header import OPENING_BYTES
from gradwire.scenarios import wire as table

RATE = 50 * MBPS
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


@pytest.fixture(autouse=True)
def _namespaces():
    needs_namespaces()


def clean(found):
    assert (found["error"], found["wrong"], found["ended_by"]) == (None, [], "done")
    assert set(found["lost"]) == {0}


@pytest.mark.parametrize("connections", ["fresh", "persistent"])
@pytest.mark.parametrize(
    "kind, name", [("tcp_newreno", "reno"), ("cubic", "cubic"), ("dctcp", "dctcp"), ("bbr", "bbr")]
)
def test_kernel_tcp_delivers_all_bytes_of_every_message(kind, name, connections):
    if name not in AVAILABLE:
        pytest.skip(f"this kernel has no {name}")
    sends = [
        {"src": s, "dst": 1 - s, "nbytes": n, "priority": p, "at_ns": a * MS}
        for s, n, p, a in ((0, 100_000, 0, 0), (0, 1, 0, 1), (1, 77_777, 3, 0), (0, 50_000, 5, 2), (0, 4096, 0, 3))
    ]
    found = inside("play", sends=sends, transport=kind, rate=RATE, connections=connections)
    clean(found)
    assert found["received"] == [send["nbytes"] for send in sends]
    assert all(end > start >= 0 for start, end in zip(found["start_ns"], found["end_ns"], strict=True))
    assert set(found["marked"]) == {-1}
    if connections == "fresh":
        least = [-(-send["nbytes"] // 1448) for send in sends]
        assert all(sent >= few for sent, few in zip(found["sent_packets"], least, strict=True))
    assert sum(found["sent_packets"]) >= 231_875 // 1448


def test_tcp_connections_carry_only_their_message_with_its_dscp(tmp_path: Path):
    pytest.importorskip("scapy", reason="scapy is not installed")
    from scapy.all import rdpcap
    from scapy.layers.inet import IP, TCP

    path = tmp_path / "x.pcap"
    sends = [{"src": 0, "dst": 1, "nbytes": 40_000, "priority": 2 * i, "at_ns": 20 * MS * i} for i in range(3)]
    found = inside("play", sends=sends, transport="tcp_newreno", rate=RATE, pcap=str(path))
    clean(found)
    content, answers = Counter(), Counter()
    for frame in rdpcap(str(path)):
        if TCP not in frame:
            continue
        size = frame[IP].len - 20 - 4 * frame[TCP].dataofs
        if frame[TCP].dport == table.GRADWIRE_PORT and not str(frame[TCP].flags).startswith("S"):
            content[frame[IP].tos >> 2] += size
        elif frame[TCP].sport == table.GRADWIRE_PORT:
            answers[frame[IP].tos >> 2] += 1
    assert content == {table.dscp(2 * i): 40_000 + OPENING_BYTES + table.GRADWIRE for i in range(3)}
    assert answers[table.dscp(0)] == sum(answers.values()) - answers[0]  # but for the handshake


def test_at_most_four_connections_are_opened_concurrently(tmp_path: Path):
    """Handshakes do not queue up, so their timeouts do not affect the run."""
    pytest.importorskip("scapy", reason="scapy is not installed")
    from scapy.all import rdpcap
    from scapy.layers.inet import IP, TCP

    path = tmp_path / "x.pcap"
    sends = [{"src": 0, "dst": 1, "nbytes": 1000, "at_ns": 20 * MS} for _ in range(20)]
    clean(inside("play", sends=sends, transport="tcp_newreno", rate=RATE, pcap=str(path)))
    opening: set[int] = set()
    began, most = 0, 0
    for frame in rdpcap(str(path)):
        if TCP not in frame:
            continue
        tcp = frame[TCP]
        if tcp.dport == table.GRADWIRE_PORT and str(tcp.flags) in ("S", "SEC"):
            opening.add(tcp.sport)
            began, most = began + 1, max(most, len(opening))
        elif tcp.sport == table.GRADWIRE_PORT and frame[IP].len - 20 - 4 * tcp.dataofs == OPENING_BYTES:
            opening.discard(tcp.dport)
    assert (began, opening) == (20, set())
    assert 1 < most <= 4


def test_tcp_retransmissions_are_counted():
    """The buffer at the receiver's port is too small for two senders."""
    sends = [{"src": s, "dst": 0, "nbytes": 300_000} for s in (1, 2)]
    found = inside("play", sends=sends, hosts=3, transport="tcp_newreno", rate=RATE, limit=12_000)
    clean(found)
    assert sum(found["retransmitted"]) > 0
    for sent, again in zip(found["sent_packets"], found["retransmitted"], strict=True):
        assert sent - again >= -(-300_000 // 1448)


def test_messages_beyond_the_preopened_connections_arrive():
    sends = [{"src": 0, "dst": 1, "nbytes": 1000 + i, "at_ns": i * MS // 4} for i in range(40)]
    found = inside("many_connections", sends=sends, rate=RATE)
    clean(found)
    assert found["received"] == [1000 + i for i in range(40)]
    assert found["open"] <= 30  # about a dozen before the first


def test_unavailable_congestion_control_is_reported():
    if "dctcp" in AVAILABLE:
        pytest.skip("this kernel has DCTCP")
    found = inside("play", sends=[{"src": 0, "dst": 1, "nbytes": 10}], transport="dctcp", rate=RATE)
    assert found["error"] == "congestion control not available on this kernel: 'dctcp' (transport.kind)"


def test_high_priority_message_overtakes_a_long_one():
    """One megabyte in the last class is in progress when 20 kB in the first class start."""
    sends = [
        {"src": 0, "dst": 1, "nbytes": 1_000_000, "priority": 7},
        {"src": 0, "dst": 1, "nbytes": 20_000, "at_ns": 20 * MS},
    ]
    found = inside("play", sends=sends, transport="cubic", rate=RATE)
    clean(found)
    assert found["end_ns"][1] < found["end_ns"][0]
