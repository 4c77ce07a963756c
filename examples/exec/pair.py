"""Two hosts, one TCP connection, as much as it takes: what iperf measures, in plain sockets.

    gradwire exec four-hosts --hosts h0,h1 -- python examples/exec/pair.py 4MB

Rank 0 receives and prints the rate of the payload; rank 1 sends. Every quarter of the bytes is a mark.
"""

from __future__ import annotations

import os
import socket
import sys
import time

import gradwire

SIZES = {"kB": 10**3, "MB": 10**6}
PORT = 5201


def exactly(connection: socket.socket, size: int) -> None:
    """Read so many bytes, and no more."""
    while size:
        size -= len(connection.recv(min(size, 1 << 16)))


def receive(parts: list[int]) -> None:
    """Take what the other rank sends, and say how fast it came."""
    with socket.create_server(("", PORT)) as server:
        connection, _ = server.accept()
        with connection:
            exactly(connection, 1)  # from here on the connection is there
            begin = time.monotonic()
            gradwire.mark()
            for step, size in enumerate(parts):
                exactly(connection, size)
                gradwire.mark(step)
            seconds = time.monotonic() - begin
    print(f"{sum(parts)} bytes in {seconds:.6f} s: {sum(parts) * 8 / seconds / 1e6:.3f} Mbit/s")


def send(parts: list[int]) -> None:
    """Send as much to rank 0."""
    end = time.monotonic() + 30
    while True:  # the two ranks start in no order
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], PORT), timeout=30)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    with connection:
        connection.sendall(b"!")
        for size in parts:
            connection.sendall(bytes(size))


def main(text: str) -> None:
    unit = text[-2:]
    whole = round(float(text[:-2]) * SIZES[unit]) if unit in SIZES else int(text)
    parts = [whole // 4] * 3 + [whole - whole // 4 * 3]
    (receive if os.environ["RANK"] == "0" else send)(parts)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "4MB")
