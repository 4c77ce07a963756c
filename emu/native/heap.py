"""Implements binary heaps for compiled code as arrays of entries, ordered by the first word, then by the second."""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.records import Record, Word


class HeapEntry(Record):
    """An entry of a heap. The heap is its first entry, and a derived class names the words by their role."""

    first = Word("entries are ordered by this word")
    second = Word("entries of equal first word are ordered by this one")
    third = Word("content")


@njit
def _entry_at(heap: HeapEntry, index: int) -> HeapEntry:
    return HeapEntry(heap, heap.base + HeapEntry.WORDS * index)


@njit
def _put(heap: HeapEntry, index: int, first: int, second: int, third: int) -> None:
    entry = _entry_at(heap, index)
    entry.first = first
    entry.second = second
    entry.third = third


@njit
def push(heap: HeapEntry, count: int, first: int, second: int, third: int) -> None:
    i = count
    while i > 0:
        parent = (i - 1) >> 1
        other = _entry_at(heap, parent)
        if other.first < first or (other.first == first and other.second < second):
            break
        _put(heap, i, other.first, other.second, other.third)
        i = parent
    _put(heap, i, first, second, third)


@njit
def pop(heap: HeapEntry, count: int) -> None:
    last = count - 1
    entry = _entry_at(heap, last)
    first, second, third = entry.first, entry.second, entry.third
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        least = _entry_at(heap, child)
        if child + 1 < last:
            other = _entry_at(heap, child + 1)
            if other.first < least.first or (other.first == least.first and other.second < least.second):
                child += 1
                least = other
        if first < least.first or (first == least.first and second < least.second):
            break
        _put(heap, i, least.first, least.second, least.third)
        i = child
    _put(heap, i, first, second, third)
