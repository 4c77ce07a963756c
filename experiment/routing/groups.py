"""The links at a switch that begin the cheapest paths, as ECMP groups.

Towards a destination these are the links to neighbours from which it costs less, by what the link costs. Links to
neighbours of one kind at one cost go together, as a *bundle*, and lead to all destinations of a kind or to none: so
bundles and kinds are compared, not links and destinations. The exceptions are the neighbours of a switch themselves: of
a bundle to their kind, each link leads to one of them only, and the bundle divides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.routing.search import Found
from gradwire.experiment.routing.wiring import Kinds, Wiring
from gradwire.scenarios.arrays import Flags, Ints

FEW_ROWS = 16
"""Up to so many, packing them one by one beats turning the table round (our choice)."""


class Groups(NamedTuple):
    """Those of a switch, in the order of the first edge switch that each leads to.

    sizes : int64[groups]. links : int32[...]: directed link ids, ascending, of one group after the other.
    row : int32[edges]: for every edge switch the number of its group, -1 where there is none.
    """

    sizes: Ints
    links: NDArray[np.int32]
    row: NDArray[np.int32]


class Ways:
    """The groups at each switch.

    `edges`: int64[edges], ascending: the switches with hosts. `column`: int64[edges]: the column of each one's kind.
    """

    def __init__(self, wiring: Wiring, kinds: Kinds, found: Found, edges: Ints) -> None:
        self.wiring, self.kinds, self.found, self.edges = wiring, kinds, found, edges
        self._column_of = np.full(len(kinds.one), -1, dtype=np.int64)
        self._column_of[found.columns] = np.arange(len(found.columns))
        self.column = self._column_of[kinds.of[edges]]
        self._edge_at = np.full(wiring.switches, -1, dtype=np.int64)
        self._edge_at[edges] = np.arange(len(edges))
        self._bundle()

    def _bundle(self) -> None:
        """Number the links' bundles, from 0 at every switch, and note one link of each."""
        wiring, to, src = self.wiring, self.kinds.of[self.wiring.dst], self.wiring.src
        order = np.lexsort((wiring.cost, to, src))
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = np.logical_or.reduce([np.diff(each[order]) != 0 for each in (src, to, wiring.cost)])
        self._one_of = order[new]
        self._first = np.concatenate(([0], np.cumsum(new)))[wiring.first]
        self._bundle_of = np.empty(len(order), dtype=np.int64)
        self._bundle_of[order] = np.cumsum(new) - 1 - self._first[src]

    def at(self, switch: int) -> Groups:
        """Those of one switch."""
        one_of = self._one_of[self._first[switch] : self._first[switch + 1]]
        if not len(one_of):
            none = np.zeros(0, dtype=np.int64)
            return Groups(none, none.astype(np.int32), np.full(len(self.edges), -1, dtype=np.int32))
        kind, near = self.kinds.of[switch], self.kinds.of[self.wiring.dst[one_of]]
        closer, to = self._closer(kind, near, one_of), self._column_of[near]
        own = np.flatnonzero((to >= 0) & (self.kinds.size[near] > 1))
        divided = own[closer[own, to[own]]]
        closer[own, to[own]] = False
        samples, equal = _distinct(_packed(closer))
        sets = closer[:, samples].T
        token = equal[self.column]  # what tells the group of each edge: the set of its kind, or itself
        divides = np.zeros(len(self.found.columns), dtype=np.bool_)
        divides[to[divided]] = True
        alone = np.flatnonzero(divides[self.column]) if len(divided) else divided
        token[alone] = len(sets) + alone
        here = int(self._edge_at[switch])
        if here >= 0:
            token[here] = len(sets) + here
        tokens, places = self._members(switch, sets, divided, alone, closer)
        return self._numbered(switch, token, tokens, places)

    def _closer(self, kind: int, near: Ints, one_of: Ints) -> Flags:
        """Which bundles of a switch of some kind lead towards which columns: bool[bundles, columns]."""
        there = self.found.cost[kind]
        own = self._column_of[kind]
        if own >= 0:
            there = there.copy()
            there[own] = self.found.among[own]
        closer: Flags = self.found.cost[near] == there - self.wiring.cost[one_of, None]
        return closer

    def _members(
        self, switch: int, sets: Flags, divided: Ints, alone: Ints, closer: Flags
    ) -> tuple[Ints, Ints]:
        """The links of each group, as pairs of a token and the link's place among those of the switch. `divided`:
        bundles; `alone`: edges that have a group for themselves."""
        mine = slice(self.wiring.first[switch], self.wiring.first[switch + 1])
        bundle = self._bundle_of[mine]
        tokens, places = np.nonzero(sets[:, bundle])
        if not len(divided):
            return tokens, places
        singly = np.flatnonzero(np.isin(bundle, divided))
        ends = self._edge_at[self.wiring.dst[mine][singly]]
        several, at = [tokens, len(sets) + ends[ends >= 0]], [places, singly[ends >= 0]]
        shared = closer[:, self.column[alone]]  # other links that lead to them as well
        if shared.any():
            edge, place = np.nonzero(shared[bundle].T)
            several.append(len(sets) + alone[edge])
            at.append(place)
        return np.concatenate(several), np.concatenate(at)

    def _numbered(self, switch: int, token: Ints, tokens: Ints, places: Ints) -> Groups:
        """Groups from the tokens of all edges, and from pairs of tokens and places of links. Tokens that no edge
        has, or no link, have no group."""
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
        order = np.lexsort((places, group))[np.count_nonzero(group < 0) :]
        sizes = np.bincount(group[order], minlength=len(used))
        return Groups(sizes, self.wiring.links[first_link + places[order]], number[token])


def _packed(closer: Flags) -> NDArray[np.uint8]:
    """Eight rows of Booleans to a row of bytes, what is missing in the last being 0. np.packbits does the same along
    the other axis quickly, and along this one slowly."""
    if len(closer) > FEW_ROWS:
        return np.packbits(np.ascontiguousarray(closer.T), axis=1, bitorder="little").T
    octets = np.zeros((-(-len(closer) // 8), closer.shape[1]), dtype=np.uint8)
    for number, row in enumerate(closer.view(np.uint8)):
        octets[number // 8] += row * np.uint8(1 << number % 8)
    return octets


def _distinct(octets: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct columns: where each occurs first, ascending, and for every column which of them it equals."""
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
    for word in words.T:  # refine: columns stay together as long as their words are equal
        values, place = np.unique(word, return_inverse=True)
        _, first, which = np.unique(which * len(values) + place, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.sort(first), rank[which]
