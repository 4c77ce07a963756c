"""Heaps of compiled code: entries of three words in one array, ordered by the first word, then by the second."""

from __future__ import annotations

from gradwire.jit.compiled import njit


@njit
def push(heap, count, first, second, third):
    """Push an entry onto a heap of `count` entries."""
    i = count
    while i > 0:
        parent = (i - 1) >> 1
        j = 3 * parent
        if heap[j] < first or (heap[j] == first and heap[j + 1] < second):
            break
        heap[3 * i] = heap[j]
        heap[3 * i + 1] = heap[j + 1]
        heap[3 * i + 2] = heap[j + 2]
        i = parent
    heap[3 * i] = first
    heap[3 * i + 1] = second
    heap[3 * i + 2] = third


@njit
def pop(heap, count):
    """Remove the first entry of a heap of `count` entries."""
    last = count - 1
    first, second, third = heap[3 * last], heap[3 * last + 1], heap[3 * last + 2]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        j = 3 * child
        if child + 1 < last and (heap[j + 3] < heap[j] or (heap[j + 3] == heap[j] and heap[j + 4] < heap[j + 1])):
            child += 1
            j += 3
        if first < heap[j] or (first == heap[j] and second < heap[j + 1]):
            break
        heap[3 * i] = heap[j]
        heap[3 * i + 1] = heap[j + 1]
        heap[3 * i + 2] = heap[j + 2]
        i = child
    heap[3 * i] = first
    heap[3 * i + 1] = second
    heap[3 * i + 2] = third
