"""A runner goes on when those who want to hear of it are gone, such as a terminal that was closed."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from emu import supervise, virtual
from emu.runner import PREFIX


def deaf(heard: list[str]):
    def hear(text: str) -> None:
        heard.append(text)
        raise BrokenPipeError

    return hear


@pytest.mark.parametrize("where", ["private", "machine"])
def test_everything_is_read_though_nobody_can_be_told(where):
    heard: list[str] = []
    stream = io.BytesIO(b"".join(f"{PREFIX}{number}\n".encode() for number in range(1000)))
    if where == "private":
        supervise._listen(stream, SimpleNamespace(heard=deaf(heard)))
    else:
        virtual._listen(SimpleNamespace(stdout=stream), deaf(heard), [])
    assert heard == [str(number) for number in range(1000)]
    assert stream.read() == b""
