"""`GroupFinder` finds ECMP groups, the links at a switch on which the cheapest paths to a destination start.

These are the links to neighbours whose remaining cost is lower by exactly the link's cost. Links to neighbours of one
kind at one cost form a *bundle*, which leads to all destinations of a kind or to none; so bundles and kinds are
compared, not links and destinations. The exception are the switch's neighbours as destinations: each link of a bundle
to their kind leads to one of them only, and the bundle is divided.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.topology.routing.search import Kinds, PathCosts, Wiring

FEW_ROWS = 16
"""Up to this number of rows, packing them one by one is faster than transposing the table (our choice)."""


class Groups(NamedTuple):
    """The groups of a switch, in the order of the first edge switch that each leads to.

    sizes : int64[groups]. links : int32[...]: directed link ids, ascending, of one group after the other.
    row : int32[edges]: the number of the group towards every edge switch, -1 for none.
    """

    sizes: Ints
    links: NDArray[np.int32]
    row: NDArray[np.int32]


class GroupFinder:
    """The groups at each switch. `edges`: int64[edges], ascending: the switches with hosts. `column`: int64[edges]: the
    column of each one's kind."""

    def __init__(self, wiring: Wiring, kinds: Kinds, costs: PathCosts, edges: Ints) -> None:
        self.wiring, self.kinds, self.found, self.edges = wiring, kinds, costs, edges
        self._column_of = np.full(len(kinds.one), -1, dtype=np.int64)
        self._column_of[costs.columns] = np.arange(len(costs.columns))
        self.column = self._column_of[kinds.of[edges]]
        self._edge_at = np.full(wiring.switches, -1, dtype=np.int64)
        self._edge_at[edges] = np.arange(len(edges))
        self._bundle()

    def _bundle(self) -> None:
        """Number the bundles of links, from 0 at every switch, and store one link of each."""
        wiring, to, src = self.wiring, self.kinds.of[self.wiring.dst], self.wiring.src
        order = np.lexsort((wiring.cost, to, src))
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = np.logical_or.reduce([np.diff(keys[order]) != 0 for keys in (src, to, wiring.cost)])
        self._one_of = order[new]
        self._first = np.concatenate(([0], np.cumsum(new)))[wiring.first]
        self._bundle_of = np.empty(len(order), dtype=np.int64)
        self._bundle_of[order] = np.cumsum(new) - 1 - self._first[src]

    def at(self, switch: int) -> Groups:
        """Return the groups of one switch."""
        one_of = self._one_of[self._first[switch] : self._first[switch + 1]]
        if not len(one_of):
            none = np.zeros(0, dtype=np.int64)
            return Groups(none, none.astype(np.int32), np.full(len(self.edges), -1, dtype=np.int32))
        kind, near = self.kinds.of[switch], self.kinds.of[self.wiring.dst[one_of]]
        closer, to = self._nearer_bundles(kind, near, one_of), self._column_of[near]
        own = np.flatnonzero((to >= 0) & (self.kinds.size[near] > 1))
        divided = own[closer[own, to[own]]]
        closer[own, to[own]] = False
        samples, equal = _distinct(_packed(closer))
        sets = closer[:, samples].T
        token = equal[self.column]  # identifies the group of each edge: the set of its kind, or the edge itself
        divides = np.zeros(len(self.found.columns), dtype=np.bool_)
        divides[to[divided]] = True
        alone = np.flatnonzero(divides[self.column]) if len(divided) else divided
        token[alone] = len(sets) + alone
        here = int(self._edge_at[switch])
        if here >= 0:
            token[here] = len(sets) + here
        tokens, indices = self._members(switch, sets, divided, alone, closer)
        return self._numbered(switch, token, tokens, indices)

    def _nearer_bundles(self, kind: int, near: Ints, one_of: Ints) -> Flags:
        """Return True for each bundle of a switch of `kind` on a cheapest path to each column: bool[bundles,
        columns]."""
        there = self.found.cost[kind]
        column = self._column_of[kind]
        if column >= 0:
            there = there.copy()
            there[column] = self.found.among[column]
        closer: Flags = self.found.cost[near] == there - self.wiring.cost[one_of, None]
        return closer

    def _members(self, switch: int, sets: Flags, divided: Ints, alone: Ints, closer: Flags) -> tuple[Ints, Ints]:
        """Return the links of each group, as pairs of a token and the link's index among those of the switch.
        `divided`: divided bundles; `alone`: edges with a group of their own."""
        leaving = slice(self.wiring.first[switch], self.wiring.first[switch + 1])
        bundle = self._bundle_of[leaving]
        tokens, indices = np.nonzero(sets[:, bundle])
        if not len(divided):
            return tokens, indices
        single_links = np.flatnonzero(np.isin(bundle, divided))
        ends = self._edge_at[self.wiring.dst[leaving][single_links]]
        all_tokens, all_indices = [tokens, len(sets) + ends[ends >= 0]], [indices, single_links[ends >= 0]]
        shared = closer[:, self.column[alone]]  # other links that lead to these edges as well
        if shared.any():
            edge, index = np.nonzero(shared[bundle].T)
            all_tokens.append(len(sets) + alone[edge])
            all_indices.append(index)
        return np.concatenate(all_tokens), np.concatenate(all_indices)

    def _numbered(self, switch: int, token: Ints, tokens: Ints, indices: Ints) -> Groups:
        """Build groups from the tokens of all edges and from pairs of tokens and link indices. Tokens without an edge
        or without a link have no group."""
        first_link, edges = int(self.wiring.first[switch]), len(token)
        count = 1 + int(max(token.max(), tokens.max(initial=0)))
        linked = np.zeros(count, dtype=np.bool_)
        linked[tokens] = True
        first = np.full(count, edges)
        first[token[::-1]] = np.arange(edges)[::-1]  # of equal tokens the last write is the first edge
        first[~linked] = edges
        used = np.flatnonzero(first < edges)
        number = np.full(count, -1, dtype=np.int32)
        number[used[np.argsort(first[used])]] = np.arange(len(used))
        group = number[tokens]
        order = np.lexsort((indices, group))[np.count_nonzero(group < 0) :]
        sizes = np.bincount(group[order], minlength=len(used))
        return Groups(sizes, self.wiring.links[first_link + indices[order]], number[token])


def _packed(closer: Flags) -> NDArray[np.uint8]:
    """Pack eight rows of Booleans into a row of bytes, padded with 0. Same as np.packbits, which is fast along the
    other axis and slow along this one."""
    if len(closer) > FEW_ROWS:
        return np.packbits(np.ascontiguousarray(closer.T), axis=1, bitorder="little").T
    octets = np.zeros((-(-len(closer) // 8), closer.shape[1]), dtype=np.uint8)
    for number, row in enumerate(closer.view(np.uint8)):
        octets[number // 8] += row * np.uint8(1 << number % 8)
    return octets


def _distinct(octets: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct columns: the first index of each, ascending, and for every column the number of its equal."""
    if len(octets) <= 2:  # few enough values for a table of them, which beats sorting
        keys = octets[0].astype(np.int64)
        if len(octets) == 2:
            keys |= octets[1].astype(np.int64) << 8
        seen = np.full(1 << 8 * len(octets), -1, dtype=np.int64)
        seen[keys[::-1]] = np.arange(len(keys))[::-1]  # of equal keys the last write is the first column
        first = np.sort(seen[seen >= 0])
        seen[keys[first]] = np.arange(len(first))
        return first, seen[keys]
    padded = np.zeros((-(-len(octets) // 8) * 8, octets.shape[1]), dtype=np.uint8)
    padded[: len(octets)] = octets
    words = np.ascontiguousarray(padded.T).view(np.uint64)  # [columns, words]
    which = np.zeros(len(words), dtype=np.int64)
    for word in words.T:  # refine: columns stay together while their words are equal
        values, value = np.unique(word, return_inverse=True)
        _, first, which = np.unique(which * len(values) + value, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.sort(first), rank[which]
