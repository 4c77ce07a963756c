"""What strangers may say to a controller or to the ports of a host: either it is right or it is refused, and nothing else.

A case is made of a seed alone. Each takes a fraction of a millisecond to some milliseconds: streams are bytes in memory,
ports are on loopback addresses of this machine.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from gradwire.emu.agent.frame_stream import AGENT_RECORDS, HEAD, MAGIC, MAX_FRAME_BYTES, VERSION, Decoder, encode
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.message_validation import check_frame, check_report
from gradwire.emu.agent.payload.contents import CheckSums
from gradwire.emu.agent.report import HostReport, Received, Reports, SentCounts
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.transports.tcp_listener import OpeningListener
from gradwire.emu.wire.header import ForeignDataError, Frames, Header, Opening
from gradwire.workload.program import MessageColumns, Messages, Program
from tests.soak.datagrams import garbage as _datagrams

Case = tuple[str, Callable[[], str]]
TOKEN = bytes(range(16))
BANNER = b"Welcome to Ubuntu 24.04 LTS\r\n\r\n * Documentation: https://help.example\r\n"
HTTP = b"GET / HTTP/1.1\r\nHost: 10.0.0.1:7117\r\n\r\n"
TLS = bytes.fromhex("16030100c8010000c40303")
PICKLE = b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."


def cases(seed: int) -> Iterator[Case]:
    """(label, thunk) without end."""
    for number in count():
        for kind in KINDS:
            label = f"{seed}:{number}:{kind}"
            yield f"agents {label}", partial(one, label)


def one(label: str) -> str:
    """Carry out the case of a label, "seed:number:kind"."""
    seed, number, kind = label.split(":")
    return KINDS[kind](random.Random(f"{seed}/{number}/{kind}"))


def take(data: bytes, draw: random.Random, records: Any = AGENT_RECORDS) -> list[tuple[Any, ...]]:
    """What a controller makes of bytes, however they are cut."""
    decoder, found, at = Decoder(TOKEN, records), [], 0
    while at < len(data):
        step = draw.choice((1, 3, 27, 4096, 1 << 20))
        for frame in decoder.feed(data[at : at + step]):
            check_frame(frame)
            found.append(frame)
        at += step
    return found


def _judged(call: Callable[[], Any]) -> str:
    try:
        call()
    except ForeignDataError:
        return "refused"
    return "ok"


# values


def value(draw: random.Random, depth: int = 0) -> Any:
    """Any value that the stream carries."""
    kinds = 9 if depth > 3 else 12
    what = draw.randrange(kinds)
    if what < 6:
        return (
            None, draw.random() < 0.5, draw.randrange(-(1 << 70), 1 << 70), draw.gauss(0, 1e9),
            "".join(chr(draw.choice((0, 65, 233, 0x4E2D, 0x1F600))) for _ in range(draw.randrange(9))), draw.randbytes(draw.randrange(40)),
        )[what]  # fmt: skip
    if what < 9:
        dtype = draw.choice(("?", "<i8", "<u4", "<f8", "<i2"))
        shape = tuple(draw.randrange(4) for _ in range(draw.randrange(3)))
        return np.array(draw.randbytes(0) or 0, dtype=dtype) if not shape else np.ones(shape, dtype=dtype)
    many = [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return (many, tuple(many), {str(i): each for i, each in enumerate(many)})[what - 9]


def same(a: Any, b: Any) -> bool:
    """Equal, in kind as well."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _values(draw: random.Random) -> str:
    """What is said is what is heard."""
    frames = [("plan", value(draw)) for _ in range(draw.randrange(1, 4))]
    data = b"".join(encode(frame, TOKEN) for frame in frames)
    decoder, found, at = Decoder(TOKEN), [], 0
    while at < len(data):
        step = draw.choice((1, 7, 1000))
        found += list(decoder.feed(data[at : at + step]))
        at += step
    assert same(found, frames), (found, frames)
    return "ok"


# streams of bytes


def said(draw: random.Random) -> bytes:
    """A few frames as an agent says them."""
    frames: list[tuple[Any, ...]] = [
        ("opened",),
        ("clock", 3, 12345),
        ("status", 3, 0, False, True),
        ("error", "no", "h0", "", True),
    ]
    frames += [("state", ["h0 waits"], [1, 2], [0]), ("report", report(draw))]
    return b"".join(encode(frame, TOKEN) for frame in draw.sample(frames, draw.randrange(1, len(frames) + 1)))


def _cut(draw: random.Random) -> str:
    data = said(draw)
    at = draw.randrange(len(data))
    data = data[:at] + (b"" if draw.random() < 0.5 else data[at + draw.randrange(1, 9) :])
    return _judged(lambda: take(data, draw))


def _flipped(draw: random.Random) -> str:
    data = bytearray(said(draw))
    for _ in range(draw.choice((1, 1, 2, 20))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return _judged(
        lambda: [check_report(each[1], 0, PROGRAM) for each in take(bytes(data), draw) if each[0] == "report"]
    )


def _stranger(draw: random.Random) -> str:
    """Send what no agent sends: at least eight bytes, as fewer may be the beginning of a frame."""
    data = draw.choice(
        (BANNER, HTTP, TLS, PICKLE, draw.randbytes(draw.randrange(8, 300)), encode(("opened",), draw.randbytes(16)))
    )
    found = _judged(lambda: take(data, draw))
    assert found == "refused", data
    return found


def _claims(draw: random.Random) -> str:
    """Lengths and counts that are not there; nothing is made for them."""
    count = struct.pack(">I", draw.choice((0x7FFFFFFF, 0xFFFFFFFF, 1 << 24)))
    bodies = (
        b"U" + count, b"L" + count + b"N", b"M" + count, b"S" + count, b"R" + count, b"A" + bytes((7, 3)) + 3 * count,
        b"U" * 3 + b"\0\0\0\1", (b"U\0\0\0\1") * draw.randrange(30, 5000) + b"N", b"I\xff", b"A\x0f\x00", b"A\x00\xff",
        b"U\0\0\0\1R\0\0\0\6object\0\0\0\0", b"M\0\0\0\1L\0\0\0\0N", b"",
    )  # fmt: skip
    body = draw.choice(bodies)
    length = draw.choice((len(body), len(body), len(body), MAX_FRAME_BYTES + 1))
    data = HEAD.pack(MAGIC, draw.choice((VERSION, VERSION, VERSION + 1)), TOKEN, length) + body
    found = _judged(lambda: take(data, draw))
    assert found == "refused", data
    return found


# reports

HOSTS, COUNT = 3, 8


def _program() -> Program:
    draw = np.random.default_rng(7)
    zeros = np.zeros(COUNT, dtype=np.int64)
    src = draw.integers(0, HOSTS, COUNT)
    messages = Messages(
        table=zeros, kind=zeros, iteration=zeros, tensor=zeros, layer=zeros, part=zeros, src=src, dst=(src + 1) % HOSTS,
        nbytes=zeros + 5000, priority=zeros, bound=zeros + 0.5, rank=zeros, captured=zeros - 1, first=zeros, important=[True] * COUNT,
    )  # fmt: skip
    nothing = np.zeros(COUNT + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Program(
        (MessageColumns("t", 0, "fifo", 0, False, 4),),
        messages,
        zeros + 1,
        messages.dst,
        nothing,
        nothing,
        zeros - 1,
        zeros,
        (),
    )


PROGRAM = _program()


def report(draw: random.Random) -> HostReport:
    """What host 0 may tell."""
    rows = PROGRAM.messages
    out, into = np.flatnonzero(rows.src == 0), np.flatnonzero(rows.dst == 0)
    got = np.array([draw.choice((5000, 4000)) for _ in into], dtype=np.int64)
    have = {int(into[0]): np.array([True, True, True, True, False])} if len(into) else {}
    sums = CheckSums(
        {int(n): np.arange(5, dtype=np.uint32) for n in out}, {int(n): np.arange(5, dtype=np.uint32) for n in into}
    )
    return HostReport(
        0, SentCounts(out, *(out * 0 + draw.randrange(1 << 40) for _ in range(4))), Received(into, got * 7, got, 5000 - got, got * 0, have),
        [IterationRow(0, 0, n, *range(6)) for n in range(draw.randrange(3))], sums, {"timers": 3, "max_ns": 5}, 0, 0, ["a note"],
    )  # fmt: skip


def _reported(draw: random.Random) -> str:
    """A true report is taken as it is."""
    (frame,) = take(encode(("report", report(draw)), TOKEN), draw)
    check_report(frame[1], 0, PROGRAM)
    reports = Reports.empty(COUNT)
    reports.add(frame[1])
    return "ok"


def _lied(draw: random.Random) -> str:
    """One that cannot be true is refused, before anything of it is believed."""
    true = report(draw)
    block = draw.choice(("sent", "received"))
    names = ("message", "retransmitted", "marked") if block == "sent" else ("message", "received", "lost", "have")
    column = draw.choice(names)
    wrong: list[Any] = [np.zeros(99, np.int64), np.zeros((1, 1), np.int64), np.array([0.5]), None, [1], "x"]
    if column == "message":
        wrong += [getattr(true, block).message + shift for shift in (COUNT, -COUNT)]
    odd = draw.choice(wrong)
    lies = (
        replace(true, **{block: replace(getattr(true, block), **{column: odd})}),
        replace(true, node=draw.choice((1, -1, 99))), replace(true, sent=None), replace(true, received="x"),
        replace(true, iterations=[IterationRow(5, *range(8))]), replace(true, iterations=[IterationRow(0, 1 << 80, *range(7))]),
        replace(true, punctuality={1: 2}), replace(true, overflows="many"), replace(true, notes=[b"x"]),
        replace(true, contents=CheckSums({0: "x"}, {})), replace(true, received=replace(true.received, lost=true.received.lost + 9999)),
    )  # fmt: skip
    lie = draw.choice(lies)
    found = _judged(lambda: [check_report(each[1], 0, PROGRAM) for each in take(encode(("report", lie), TOKEN), draw)])
    assert found == "refused", lie
    return found


# ports


class _Host:
    def __init__(self, address: str) -> None:
        self.node, self.token, self.loop, self._address = 0, TOKEN, EpollLoop(time.monotonic_ns()), address

    def address(self, node: int) -> str:
        return self._address


def _door(draw: random.Random) -> str:
    """Whoever does not open with the words of the run is turned away, and those who do come in beside him."""
    opening = Opening(TOKEN).words
    words = draw.choice(
        (
            HTTP,
            TLS,
            b"",
            opening[:-1] + b"x",
            opening[: draw.randrange(len(opening))],
            draw.randbytes(60),
            opening + b"more",
        )
    )
    host: Any = _Host(f"127.78.{draw.randrange(256)}.{draw.randrange(1, 255)}")
    let: list[socket.socket] = []
    door = OpeningListener(
        host, draw.randrange(20000, 30000), lambda link, address: let.append(link), lambda made: None
    )
    right = words.startswith(opening)
    try:
        where = door.address()
        with socket.create_connection(where, 2) as stranger, socket.create_connection(where, 2) as friend:
            stranger.sendall(words)
            friend.sendall(opening)
            if not right:
                stranger.shutdown(socket.SHUT_WR)
            host.loop.at(host.loop.now() + 1_000_000, host.loop.stop)
            while len(let) < 1 + right or door.turned < 1 - right:
                host.loop.run()
                assert host.loop.now() < 5_000_000_000, "it did not answer"
                host.loop.at(host.loop.now() + 1_000_000, host.loop.stop)
            assert friend.recv(100) == opening
            assert (len(let), door.turned) == (1 + right, 1 - right), words
    finally:
        door.close()
        for each in let:
            each.close()
        host.loop.close()
    return "ok" if right else "refused"


def _frames(draw: random.Random) -> str:
    """Whatever comes in a stream of headers, what is made of it is no more than came."""
    data = b"".join(
        Header(draw.randrange(1 << 32), length=len(content), kind=draw.randrange(8)).pack() + content
        for content in (draw.randbytes(draw.randrange(50)) for _ in range(draw.randrange(6)))
    ) + draw.randbytes(draw.randrange(30))
    frames, count = Frames(), 0
    for at in range(0, len(data), 11):
        count += sum(16 + len(content) for _, content in frames.feed(data[at : at + 11]))
    assert count <= len(data)
    return "ok"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "values": _values, "cut": _cut, "flipped": _flipped, "stranger": _stranger, "claims": _claims, "reported": _reported,
    "lied": _lied, "door": _door, "frames": _frames, "datagrams": _datagrams,
}  # fmt: skip
