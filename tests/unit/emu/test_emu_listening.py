"""A runner goes on when those who want to hear of it are gone, such as a terminal that was closed."""

from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace

from gradwire.emu.control import supervisor
from gradwire.emu.control.runner import PREFIX
from gradwire.emu.virtual_time import virtual_machine

LINES = [f"{PREFIX}{number}\n".encode() for number in range(1000)]
NUMBERS = [str(number) for number in range(1000)]


def deaf(heard: list[str]):
    def hear(text: str) -> None:
        heard.append(text)
        raise BrokenPipeError

    return hear


def test_supervisor_reads_all_progress_if_the_listener_fails():
    heard: list[str] = []
    stream = io.BytesIO(b"".join(LINES))
    supervisor._listen(stream, SimpleNamespace(report_progress=deaf(heard)))
    assert heard == NUMBERS
    assert stream.read() == b""


def test_partial_machine_output_is_reported_as_whole_lines(tmp_path):
    """Complete lines are reported at once; an unterminated last line is reported at the end."""
    heard: list[str] = []
    log: list[str] = []
    said, ended = (tmp_path / "said").open("w+b", buffering=0), threading.Event()
    listener = threading.Thread(target=virtual_machine._listen, args=(said.fileno(), None, ended, deaf(heard), log))
    listener.start()
    text = b"".join(LINES)
    with said as file:
        for at in range(0, len(text), 1001):
            file.write(text[at : at + 1001])
            time.sleep(0.005)
        file.write(b"the kernel's own\r\nlast")
        time.sleep(3 * virtual_machine.OUTPUT_POLL_S)
        assert heard == NUMBERS and log == ["the kernel's own"]
        ended.set()
        listener.join(5)
    assert log == ["the kernel's own", "last"] and heard == NUMBERS
