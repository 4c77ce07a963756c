"""DLCP and constant rates between real hosts: every packet on the wire, losses within bounds, marks that slow down.

Hosts are network namespaces around a bridge; losses and marks are made by nftables at random or in turns.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from emu_agents_cases import MBPS, MS, inside, needs_namespaces

from gradwire.emu.wire import header as wire
from gradwire.scenarios import wire as table

RATE = 50 * MBPS
UDP_ONLY = {"side_channel": "udp"}


@pytest.fixture(autouse=True)
def _namespaces():
    needs_namespaces()


def clean(found):
    """Nothing went wrong that the run itself would tell."""
    assert found["error"] is None
    assert found["wrong"] == []
    assert found["ended_by"] == "done"


def dissected(path):
    pytest.importorskip("scapy", reason="scapy is not installed")
    from scapy.all import rdpcap

    import gradwire.emu.wire.scapy_layer  # noqa: F401

    return rdpcap(str(path))


def test_captured_packets_match_the_wire_format(tmp_path: Path):
    """A capture at the receiver's device holds two messages one way and one the other, with different queues and
    tags."""
    from scapy.layers.inet import IP, TCP, UDP

    sends = [
        {"src": 0, "dst": 1, "nbytes": 20_001, "priority": 3, "important": [i % 3 == 0 for i in range(20)]},
        {"src": 0, "dst": 1, "nbytes": 5_000, "priority": 7, "at_ns": 2 * MS, "important": False, "bound": 0.5},
        {"src": 1, "dst": 0, "nbytes": 3_000, "priority": 0, "at_ns": 3 * MS},
    ]
    path = tmp_path / "x.pcap"
    found = inside("play", sends=sends, rate=RATE, pcap=str(path), settings={"stop_policy": "on_probe"}, payload=1024)
    clean(found)
    frames = dissected(path)
    from gradwire.emu.wire.scapy_layer import Gradwire, GradwireStream

    packets = [frame for frame in frames if UDP in frame]
    data = [frame for frame in packets if frame[Gradwire].kind == wire.DATA]
    acks = [frame for frame in packets if frame[Gradwire].kind == wire.ACK]
    assert len(data) + len(acks) == len(packets)
    seen = Counter((frame[Gradwire].message, frame[Gradwire].sequence) for frame in data)
    sizes = [-(-send["nbytes"] // 1024) for send in sends]
    assert seen == {(m, i): 1 for m, count in enumerate(sizes) for i in range(count)}
    for frame in data:
        head, send = frame[Gradwire], sends[frame[Gradwire].message]
        length = min(1024, send["nbytes"] - 1024 * head.sequence)
        assert (head.length, head.offset) == (length, 1024 * head.sequence)
        tags = send.get("important", True)
        important = tags if isinstance(tags, bool) else tags[head.sequence]
        assert frame[IP].tos == table.tos_byte(send["priority"], important) and head.important == important
        assert len(frame) == length + table.UDP_OVERHEAD == frame[IP].len + table.ETHERNET
        assert (frame[IP].src, frame[IP].dst) == (f"10.0.0.{send['src'] + 1}", f"10.0.0.{send['dst'] + 1}")
        assert (frame[UDP].sport, frame[UDP].dport) == (table.SOURCE_PORTS[head.message], table.GRADWIRE_PORT)
    answered = Counter((frame[Gradwire].message, frame[Gradwire].sequence) for frame in acks)
    assert all(answered[m, i] <= 1 for m, i in answered) and set(answered) <= set(seen)
    assert len(acks) >= len(data) - 3  # the last packet of a message is answered by Stop
    for frame in acks:
        head = frame[Gradwire]
        assert frame[IP].tos == table.tos_byte(0, True) and len(frame) == table.DLCP_ACK_BYTES
        assert (frame[UDP].sport, frame[UDP].dport) == (table.GRADWIRE_PORT, table.SOURCE_PORTS[head.message])
        assert (head.length, head.echo, head.trimmed) == (0, 0, 0)
    streams = [frame for frame in frames if TCP in frame and GradwireStream in frame and frame[GradwireStream].frames]
    heads = [(frame, head) for frame in streams for head in frame[GradwireStream].frames]
    stops = [(frame, head) for frame, head in heads if head.kind == wire.STOP]
    assert {head.message for _, head in stops} == {0, 1, 2}
    assert {frame[IP].tos >> 2 for frame, _ in stops} == {table.dscp(0)}
    assert {frame[TCP].sport for frame, _ in stops} == {table.CONTROL_PORT}


def test_probes_use_the_priority_of_their_data(tmp_path: Path):
    from scapy.layers.inet import IP, TCP

    path = tmp_path / "x.pcap"
    sends = [{"src": 0, "dst": 1, "nbytes": 60_000, "priority": 5, "important": False, "bound": 0.9}]
    settings = {"stop_policy": "on_probe"}
    found = inside("play", sends=sends, rate=RATE, loss=300, pcap=str(path), settings=settings)
    clean(found)
    from gradwire.emu.wire.scapy_layer import GradwireStream

    heads = [
        (frame[IP].tos >> 2, frame[TCP].dport, head.sequence)
        for frame in dissected(path)
        if TCP in frame and GradwireStream in frame
        for head in frame[GradwireStream].frames
        if head.kind == wire.PROBE
    ]
    assert heads and heads[0] == (table.dscp(5), table.CONTROL_PORT, 1)
    assert found["lost"][0] > 0


def test_control_datagrams_without_side_channel_have_simulated_sizes(tmp_path: Path):
    """Probes use the priority of their data; Stop and Bitmap use the control priority. Bitmaps carry the receiver's
    state."""
    from scapy.layers.inet import IP, TCP, UDP

    path = tmp_path / "x.pcap"
    sends = [{"src": 0, "dst": 1, "nbytes": 60_000, "priority": 5, "important": False, "bound": 0.0}]
    found = inside("play", sends=sends, rate=RATE, loss=300, pcap=str(path), pcap_at=0, options=UDP_ONLY)
    clean(found)
    assert found["lost"] == [0] and found["retransmitted"][0] > 0
    everything = dissected(path)
    from gradwire.emu.wire.scapy_layer import Gradwire

    assert not any(TCP in frame for frame in everything)
    frames = [frame for frame in everything if Gradwire in frame]
    packets = -(-60_000 // 1024)
    for frame in frames:
        head = frame[Gradwire]
        if head.kind == wire.PROBE:
            assert (len(frame), frame[IP].tos) == (table.DLCP_ACK_BYTES, table.tos_byte(5, True))
            assert frame[UDP].dport == table.GRADWIRE_PORT
        elif head.kind in (wire.STOP, wire.BITMAP):
            bits = (packets + 7) // 8 if head.kind == wire.BITMAP else 0
            assert (len(frame), frame[IP].tos) == (table.TCP_OVERHEAD + bits, table.tos_byte(0, True))
            assert head.length == bits
    kinds = Counter(frame[Gradwire].kind for frame in frames)
    assert kinds[wire.PROBE] and kinds[wire.BITMAP]


@pytest.mark.beside
@pytest.mark.parametrize("options", [{}, UDP_ONLY])
@pytest.mark.parametrize("bound, tags", [(0.0, None), (0.1, False), (0.05, "some")])
def test_losses_are_within_the_bound_and_counted_exactly(tmp_path: Path, bound, tags, options):
    """Both hosts lose 5 % of the datagrams, including acknowledgements."""
    path = tmp_path / "x.pcap"
    count = 400
    tagged = [i % 2 == 0 for i in range(count)] if tags == "some" else tags
    sends = [{"src": s, "dst": 1 - s, "nbytes": 1024 * count - 7, "bound": bound, "important": tagged} for s in (0, 1)]
    found = inside("play", sends=sends, rate=RATE, loss=50, pcap=str(path), pcap_at=0, options=options)
    clean(found)
    for message in (0, 1):
        size = sends[message]["nbytes"]
        assert found["received"][message] + found["lost"][message] == size
        assert found["lost"][message] <= bound * size
        missing = found["have"].get(str(message), [])
        assert found["lost"][message] == sum(min(1024, size - 1024 * i) for i in missing)
        if tags == "some":
            assert all(i % 2 for i in missing)
    if not bound:
        assert found["lost"] == [0, 0]
    assert (bound < 0.1) <= sum(found["retransmitted"])
    _check_retransmissions(path, found, sends)


def _check_retransmissions(path, found, sends):
    """What leaves a second time is important, whatever it was at first; and the sender has counted it."""
    from scapy.layers.inet import IP, UDP

    from gradwire.emu.wire.scapy_layer import Gradwire

    copies: Counter = Counter()
    for frame in dissected(path):
        if UDP not in frame or frame[Gradwire].kind != wire.DATA or frame[IP].src != "10.0.0.1":
            continue
        sequence = frame[Gradwire].sequence
        tags = sends[0]["important"]
        first = tags if isinstance(tags, bool) else tags is None or tags[sequence]
        important = first or copies[sequence] > 0
        assert frame[IP].tos == table.tos_byte(0, important) and frame[Gradwire].important == important
        copies[sequence] += 1
    assert sum(copies.values()) - len(copies) == found["retransmitted"][0]
    probes = found["sent_packets"][0] - found["retransmitted"][0] - len(copies)
    assert 0 <= probes <= 20


def test_eager_stop_ends_a_message_at_its_loss_bound():
    sends = [{"src": 0, "dst": 1, "nbytes": 400 * 1024, "bound": 0.5, "important": False}]
    found = inside("play", sends=sends, rate=RATE, settings={"stop_policy": "eager", "send_order": "sequential"})
    clean(found)
    assert found["received"] == [200 * 1024] and found["have"]["0"] == list(range(200, 400))
    assert 200 <= found["sent_packets"][0] < 300
    alone = 200 * (1024 + 58) * 8 / RATE * 1e9
    assert found["end_ns"][0] - found["start_ns"][0] < 1.5 * alone + 20 * MS


def test_early_stop_sends_the_required_packets_from_a_rotating_start():
    """Both messages start at the simulator's packet and wrap around. The step is 247, since 0.618 x 400 is 247.2 and
    247 and 400 have no divisor in common."""
    send = {"src": 0, "dst": 1, "nbytes": 400 * 1024, "bound": 0.5, "important": False}
    sends = [{**send, "turn": turn} for turn in (0, 1)]
    found = inside("play", sends=sends, rate=RATE)
    clean(found)
    assert found["received"] == [200 * 1024] * 2 and found["retransmitted"] == [0, 0]
    assert all(200 <= sent <= 205 for sent in found["sent_packets"])  # with probes, where a Stop was late
    for message in (0, 1):
        begin = 247 * message
        assert set(found["have"][str(message)]) == {(begin + 200 + i) % 400 for i in range(200)}


def test_messages_of_a_pair_are_sequential_and_pairs_share_the_link():
    """Two hosts send three messages each to a third host. Each sender serves its oldest message first, and the
    receiver reports the number of senders."""
    sends = [{"src": s, "dst": 2, "nbytes": 200 * 1024} for _ in range(3) for s in (0, 1)]
    found = inside("play", sends=sends, hosts=3, rate=RATE)
    clean(found)
    one = 200 * (1024 + 58) * 8 / RATE * 1e9
    for s in (0, 1):
        ends = [found["end_ns"][m] - found["start_ns"][s] for m in (s, s + 2, s + 4)]
        assert ends == pytest.approx([2 * one, 4 * one, 6 * one], rel=0.25)


@pytest.mark.parametrize("options", [{}, UDP_ONLY])
def test_bitmap_of_three_parts_recovers_all_losses(options):
    """A message of 20 000 packets takes three parts; 1 % of it is lost."""
    sends = [{"src": 0, "dst": 1, "nbytes": 64 * 20_000}]
    found = inside("play", sends=sends, rate=100 * MBPS, loss=10, payload=64, options=options, _timeout=100)
    clean(found)
    assert found["lost"] == [0] and found["retransmitted"][0] > 50


def test_ecn_marks_reduce_the_sending_rate():
    """Every packet, every fourth or none is marked. Marks are counted; without marks the sender uses the line rate."""
    sends = [{"src": 0, "dst": 1, "nbytes": 100 * 1024}]
    plain, slow, some = (inside("play", sends=sends, rate=RATE, mark=mark) for mark in (0, 1, 4))
    for found, marked in ((plain, 0), (slow, 100), (some, 25)):
        clean(found)
        assert found["sent_packets"][0] - found["retransmitted"][0] in range(100, 110)  # and probes
        assert marked <= found["marked"][0] <= marked + found["retransmitted"][0]
    took = [found["end_ns"][0] - found["start_ns"][0] for found in (plain, slow)]
    # rates fall by half per round trip, down to a 64th
    assert took[1] > 5 * took[0]
    assert took[1] < 1.2 * 64 * 100 * (1024 + 58) * 8 / RATE * 1e9


@pytest.mark.parametrize("loss, bound", [(0, 0.0), (100, 0.3), (100, 0.0)])
def test_constant_rate_respects_rate_and_loss_bound(loss, bound):
    sends = [{"src": 0, "dst": 1, "nbytes": 300 * 1024, "bound": bound, "important": False}]
    settings = {"share": 0.5, "repeat_after": 2 * 10**9}
    found = inside("play", sends=sends, transport="constant_rate", rate=RATE, loss=loss, settings=settings)
    clean(found)
    assert found["lost"][0] <= bound * 300 * 1024
    took = found["end_ns"][0] - found["start_ns"][0]
    assert took > 0.95 * 300 * (1 - bound) * (1024 + 58) * 8 / (RATE * 0.5) * 1e9 - MS
    if not loss:
        assert found["sent_packets"] == [300] and found["retransmitted"] == [0]
    elif not bound:
        assert found["retransmitted"][0] > 0


def test_incast_of_eight_hosts_delivers_all_messages():
    """Eight senders share one port with a buffer that is too small."""
    sends = [{"src": s, "dst": 0, "nbytes": 64 * 1024, "bound": 0.05, "priority": s % 3} for s in range(1, 9)]
    found = inside("play", sends=sends, hosts=9, rate=RATE, limit=16_000)
    clean(found)
    assert sum(found["retransmitted"]) > 0
    alone = 8 * 64 * 0.95 * (1024 + 58) * 8 / RATE * 1e9
    assert max(found["end_ns"]) >= alone - MS
