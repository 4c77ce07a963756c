"""Reads plain data from a pickle without running any code from it.

PyTorch's flight recorder writes numbers, texts, lists, tuples and dictionaries with a small part of the pickle
language. This reader knows only that part: it has no way to import or call anything, so a file that asks for it
(GLOBAL, REDUCE, BUILD, persistent ids) is refused, as is a memo number that is out of order, which makes Python's own
reader allocate gigabytes.
"""

from __future__ import annotations

import struct
from typing import Any

from gradwire.scenarios.errors import TraceError

_MARK = object()
_KEYS = (str, int, float, bytes, type(None))
_REFUSED = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
}
"""Operations that import, call or look up code."""
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_EMPTY = {0x7D: dict, 0x5D: list, 0x29: tuple}
_NUMBERS = {0x4B: "<B", 0x4D: "<H", 0x4A: "<i", 0x47: ">d"}
_TEXTS = {0x8C: "<B", 0x58: "<I", 0x8D: "<Q"}
_BYTES = {0x43: "<B", 0x42: "<I", 0x8E: "<Q", 0x55: "<B", 0x54: "<i"}
_LONGS = {0x8A: "<B", 0x8B: "<i"}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUT, _GET = {0x71: "<B", 0x72: "<I"}, {0x68: "<B", 0x6A: "<I"}


def load_plain(data: bytes, where: str) -> Any:
    """Return the data of a pickle; TraceError if it is damaged or holds anything but plain data."""
    reader = _PickleReader(data, where)
    try:
        return reader.run()
    except (IndexError, struct.error, KeyError):
        raise TraceError(f"its pickle is damaged at byte {reader.at}", where, "a whole dump") from None
    except (TypeError, ValueError, AttributeError, OverflowError, UnicodeDecodeError) as error:
        raise TraceError(f"its pickle is damaged at byte {reader.at} ({error})", where, "a whole dump") from None


class _PickleReader:
    """One pass over the operations, with a stack and a memo as pickle has them."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = data, where, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def number(self, form: str) -> Any:
        """Return the number at this place, and pass it."""
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def take(self, size: int) -> bytes:
        """Return the next bytes; IndexError if there are fewer."""
        if size < 0 or self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]

    def marked(self) -> list[Any]:
        """Return what is on the stack above the last mark, and remove both."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                values = self.stack[index + 1 :]
                del self.stack[index:]
                return values
        raise IndexError

    def run(self) -> Any:
        """Return the value that STOP leaves."""
        data, stack, memo = self.data, self.stack, self.memo
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x68:  # BINGET: half of all operations
                stack.append(memo[data[self.at]])
                self.at += 1
            elif code in _NUMBERS:
                stack.append(self.number(_NUMBERS[code]))
            elif code in _TEXTS:
                stack.append(self.take(self.number(_TEXTS[code])).decode("utf-8", "surrogatepass"))
            elif code in _PUT or code == 0x94:
                index = len(memo) if code == 0x94 else self.number(_PUT[code])
                if index > len(memo) + 1:
                    raise TraceError(f"memo number {index} is out of order", self.where, "a dump of PyTorch")
                memo[index] = stack[-1]
            elif code == 0x28:
                stack.append(_MARK)
            elif code in _EMPTY:
                stack.append(_EMPTY[code]())
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == 0x2E:
                return self.result()
            else:
                self.other(code)

    def result(self) -> Any:
        """Return the only value of the stack."""
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise IndexError
        return self.stack[0]

    def other(self, code: int) -> None:
        """Apply one of the rarer operations."""
        stack = self.stack
        if code in (0x75, 0x73):  # SETITEMS, SETITEM
            items = self.marked() if code == 0x75 else [stack.pop(-2), stack.pop()]
            target = stack[-1]
            if not isinstance(target, dict) or not all(isinstance(key, _KEYS) for key in items[::2]):
                raise TypeError("items without a dictionary, or with keys that are no texts or numbers")
            target.update(zip(items[::2], items[1::2], strict=True))
        elif code in (0x65, 0x61):  # APPENDS, APPEND
            values = self.marked() if code == 0x65 else [stack.pop()]
            if not isinstance(stack[-1], list):
                raise TypeError("values without a list")
            stack[-1].extend(values)
        elif code in _TUPLES:
            values = stack[-_TUPLES[code] :]
            if len(values) < _TUPLES[code] or any(value is _MARK for value in values):
                raise IndexError
            stack[-_TUPLES[code] :] = [tuple(values)]
        elif code in (0x74, 0x6C, 0x64):  # TUPLE, LIST, DICT
            values = self.marked()
            if code == 0x64 and values:
                raise TypeError("a dictionary of protocol 0")
            stack.append(tuple(values) if code == 0x74 else values if code == 0x6C else {})
        elif code in _LONGS:
            stack.append(int.from_bytes(self.take(self.number(_LONGS[code])), "little", signed=True))
        elif code in _BYTES:
            stack.append(self.take(self.number(_BYTES[code])))
        elif code in _GET:
            stack.append(self.memo[self.number(_GET[code])])
        elif code in (0x30, 0x31):  # POP, POP_MARK
            self.marked() if code == 0x31 else stack.pop()
        elif code == 0x32:
            stack.append(stack[-1])
        elif code == 0x80:
            if self.number("<B") > 5:
                raise TraceError("is a pickle of a newer protocol", self.where, "protocol 5 or lower")
        elif code == 0x95:
            self.number("<Q")
        elif code in _REFUSED:
            what = f"its pickle asks to run code ({_REFUSED[code]} at byte {self.at - 1})"
            raise TraceError(what, self.where, "a dump of PyTorch's flight recorder, which holds plain data only")
        else:
            raise TraceError(f"is not a pickle of plain data (byte {self.at - 1} is 0x{code:02x})", self.where)
