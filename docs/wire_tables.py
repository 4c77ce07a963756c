"""Writes the tables of docs/wire.md from `gradwire.scenarios.wire` and the transports, so that they cannot be wrong.

python docs/wire_tables.py           rewrite docs/wire.md below its marker
python docs/wire_tables.py --check   exit with 1 if it is out of date (test_emu_wire_docs.py does this)
"""

from __future__ import annotations

import sys
from pathlib import Path

from gradwire.emu.planning.capabilities import available_transports
from gradwire.scenarios import wire
from gradwire.scenarios.loading.registry import components

FILE = Path(__file__).with_name("wire.md")
MARKER = "<!-- written by docs/wire_tables.py from here on -->"

FIELDS = {
    "message": "number of the message in the Result",
    "offset": "by kind, see below",
    "length": "by kind, see below",
    "sequence": "by kind, see below",
    "flags": "bits, see below",
}
FLAGS = {
    "kind": "what the packet is: a number of the next table",
    "important": "ECN-capable on the way; as it was sent, whatever switches made of it",
    "trimmed": "a switch has cut the payload off (simulator only)",
    "echo": "the packet that this one answers came with a congestion mark",
}


def tables() -> str:
    """All of it as Markdown."""
    lines = [MARKER, "", "## The gradwire header", "", f"{wire.GRADWIRE} bytes, most significant byte first."]
    lines += ["", "| bytes | field | meaning |", "|---|---|---|"]
    at = 0
    for name, size in wire.HEADERS["gradwire"]:
        lines.append(f"| {at}-{at + size - 1} | `{name}` | {FIELDS[name]} |")
        at += size
    lines += ["", "| flags | bit | meaning |", "|---|---|---|"]
    for name, mask in wire.GRADWIRE_FLAGS.items():
        lines.append(f"| `{name}` | {mask:#06x} | {FLAGS[name]} |")
    lines += ["", "| kind | | offset | length | sequence |", "|---|---|---|---|---|"]
    for number, kind in enumerate(wire.PACKET_KINDS):
        lines.append(f"| {number} | `{kind}` | " + " | ".join(wire.GRADWIRE_FIELDS[kind]) + " |")
    lines += ["", "## The byte that switches look at", "", "DSCP and ECN, the second byte of the IPv4 header."]
    lines += ["", "| queue | class | DSCP | important (ECT(0)) | droppable (Not-ECT) |", "|---|---|---|---|---|"]
    for queue in range(8):
        code = wire.dscp(queue)
        both = f"{wire.tos_byte(queue, True):#04x} | {wire.tos_byte(queue, False):#04x}"
        lines.append(f"| {queue} | CS{code >> 3} | {code} | {both} |")
    lines += ["", "A marked packet has both ECN bits set (CE).", "", "## Sizes", ""]
    lines += ["Bytes on the link, as `tc` counts them.", "", "| packet | headers | bytes |", "|---|---|---|"]
    for name, headers in wire.WIRES.items():
        lines.append(f"| data over {name} | {', '.join(headers)} | {_overhead(name)} and the payload |")
    lines += [f"| any | | at least {wire.MIN_FRAME}: padded |", *_control_sizes()]
    ports = wire.SOURCE_PORTS
    lines += [
        "", "## Ports", "", "| port | |", "|---|---|",
        f"| UDP {wire.GRADWIRE_PORT} | data goes to it, acknowledgements come from it |",
        f"| UDP {ports[0]} to {ports[-1]} | data comes from them, by the number of the message |",
        f"| TCP {wire.GRADWIRE_PORT} | messages over the kernel's TCP; with several such transports the first one's |",
        f"| TCP {wire.CONTROL_PORT} | the side channel of Stop, Probe and Bitmap |",
        f"| TCP {wire.CONTROL_PORT + 1} and on | further transports over the kernel's TCP |",
        f"| UDP {wire.ROCE_PORT} | RoCE, in captures of simulated packets only |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _control_sizes() -> list[str]:
    """The table of control packets, on the testbed and simulated."""
    stream, side, testbed = wire.TESTBED_SIDE_CHANNEL_BYTES, wire.SIDE_CHANNEL_BYTES, available_transports()
    parts = f"n / 8 (parts of {wire.BITMAP_PACKETS} packets at most)"
    lines = [
        "", "DLCP's side channel is TCP on the testbed, where each packet has a gradwire header "
        f"({wire.GRADWIRE} bytes) behind that of TCP; the simulator counts the segment without it, and a Probe as the "
        "smallest frame. What goes over UDP is of one size in both. A message over the kernel's TCP is answered by a "
        f"Stop of {stream} bytes.",
        "", "| control packet | on the testbed | simulated |", "|---|---|---|",
        f"| `dlcp`: Stop | {stream} | {side} |",
        f"| `dlcp`: Probe | {stream} | {wire.PROBE_BYTES} |",
        f"| `dlcp`: Bitmap of n packets | {stream} and {parts} | {side} and {parts} |",
        f"| `ltp`: Stop | {side} | {side} |",
    ]  # fmt: skip
    for kind, owner in components("transport").items():
        if owner.simulated:
            name = "acknowledgement and the like" if owner.acknowledges else "Stop"
            there = owner.control_bytes if kind in testbed else "does not run there"
            there = "the kernel's" if components("transport")[kind].kernel_tcp else there
            lines.append(f"| `{kind}`: {name} | {there} | {owner.control_bytes} |")
    return lines


def _overhead(name: str) -> int:
    return {"tcp": wire.TCP_OVERHEAD, "udp": wire.UDP_OVERHEAD, "roce": wire.ROCE_OVERHEAD}[name]


def main(arguments: list[str]) -> int:
    """Rewrite the file, or with --check only say whether it is up to date."""
    text = FILE.read_text(encoding="utf-8")
    fresh = text.split(MARKER)[0] + tables()
    if "--check" in arguments:
        return int(fresh != text)
    FILE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
