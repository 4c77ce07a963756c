"""docs/wire.md says what the table says, and its example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_wire_format_tables_are_up_to_date():
    done = subprocess.run([sys.executable, "docs/wire_tables.py", "--check"], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, "run python docs/wire_tables.py"


def test_wire_format_example_runs(tmp_path: Path):
    pytest.importorskip("scapy", reason="scapy is not installed")
    from scapy.all import IP, UDP, Ether, wrpcap

    from gradwire.emu.wire.header import ACK, Header

    data = Header(3, sequence=9, kind=ACK, important=True).pack() + bytes(2)
    wrpcap(
        str(tmp_path / "packets.pcapng"), [Ether() / IP(src="10.0.0.2", tos=0xE2) / UDP(sport=7117, dport=49155) / data]
    )
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs/wire.md").read_text(), re.S)
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found[1]], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout == "10.0.0.2 226 gradwire ack message 3 sequence 9 length 0\n", done.stderr
