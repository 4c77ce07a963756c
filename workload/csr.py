"""Builds and selects lists of numbers in CSR form, all members in one array with each list's first index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import np

CsrLists = tuple[Ints, Ints]
"""(first, members): those of list i are `members[first[i] : first[i + 1]]`."""


def starts_of(counts: Any) -> Ints:
    """Return the first member of every list, and the end of the last one, from the lengths of the lists."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))


def csr_lists(pairs: Sequence[tuple[Any, Any]], owners: int) -> CsrLists:
    """Return the items of every owner in their given order; `pairs`: arrays of owners and of their items."""
    none = np.zeros(0, dtype=np.int64)
    owner, item = (np.concatenate([none, *(np.ravel(pair[side]) for pair in pairs)]) for side in (0, 1))
    order = np.argsort(owner, kind="stable")
    return starts_of(np.bincount(owner, minlength=owners)), np.asarray(item[order], dtype=np.int64)


def empty_lists(owners: int) -> CsrLists:
    """Return `owners` empty lists."""
    return np.zeros(owners + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)


def owners_of(lists: CsrLists) -> Ints:
    """Return the list of every member."""
    return np.repeat(np.arange(len(lists[0]) - 1), np.diff(lists[0]))


def select_lists(lists: CsrLists, numbers: Ints) -> CsrLists:
    """Return the lists of these numbers, in this order."""
    first, members = lists
    counts = np.diff(first)[numbers]
    starts = starts_of(counts)
    return starts, members[np.repeat(first[numbers] - starts[:-1], counts) + np.arange(starts[-1])]
