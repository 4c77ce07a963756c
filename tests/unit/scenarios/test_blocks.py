"""Blocks: rows that come in any order are read in theirs, and are the bytes that a whole table would be."""

from __future__ import annotations

import copy
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st

from gradwire.result_store import lazy_table, row_blocks
from gradwire.result_store.lazy_table import InMemoryTable, dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.result_store.row_blocks import TYPES, BlockTable, ColumnStore, RowBlocks
from gradwire.result_store.table_schema import CAUSES, TABLES, make_table
from gradwire.scenarios.arrays import AnyArray

PORTS = ("a->b", "b->a", "a->b", "c->a")  # two cables of one name
KEY = ("time_ps", "cause", "port", "message", "place")


def drops(rng: np.random.Generator, count: int, spread: int) -> dict[str, AnyArray]:
    """Rows of the table of drops, about in the order of their times; those of one time in any."""
    times = rng.integers(0, 1 + count // 2, count)
    columns = {
        "message": rng.integers(0, 5, count), "packet": rng.integers(-1, 9, count), "port": rng.integers(0, 4, count),
        "time_ps": times, "cause": rng.integers(0, 6, count), "important": rng.random(count) < 0.5,
        "priority": rng.integers(0, 8, count), "place": rng.permutation(count),
    }  # fmt: skip
    order = np.argsort(times + rng.integers(0, 1 + spread, count), kind="stable")
    return {name: column[order] for name, column in columns.items()}


def in_blocks(columns: dict[str, AnyArray], cuts: list[int], key: tuple[str, ...] = KEY) -> RowBlocks:
    """Added in pieces that end at `cuts`."""
    types = {name: TYPES[kind] for name, kind in TABLES["drops"].items()} | {"place": np.int64}
    made = RowBlocks(ColumnStore(), types, key)
    count = len(columns["message"])
    edges = sorted({0, count, *(cut % (count + 1) for cut in cuts)})
    for first, beyond in pairwise(edges):
        made.add({name: column[first:beyond] for name, column in columns.items()})
    return made


def whole(columns: dict[str, AnyArray]) -> pyarrow.Table:
    """What they have to be: sorted at once, texts as texts."""
    order = np.lexsort([columns[name] for name in reversed(KEY)])
    ordered: dict[str, Any] = {name: columns[name][order] for name in TABLES["drops"]}
    ordered["port"] = [PORTS[code] for code in ordered["port"].tolist()]
    ordered["cause"] = [CAUSES[code] for code in ordered["cause"].tolist()]
    return make_table("drops", ordered)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few rows, most of them in a file, read in small groups."""
    monkeypatch.setattr(row_blocks, "ROWS", 7)
    monkeypatch.setattr(row_blocks, "IN_MEMORY", 300)
    monkeypatch.setattr(lazy_table, "GROUP", 10)


@budget(0.5)
@given(
    count=st.integers(0, 120), spread=st.sampled_from((0, 3, 1000)), seed=st.integers(0, 99),
    cuts=st.lists(st.integers(0, 120), max_size=30),
)  # fmt: skip
def test_row_blocks_return_rows_in_key_order(count: int, spread: int, seed: int, cuts: list[int]):
    columns = drops(np.random.default_rng(seed), count, spread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "ROWS", 7)
        patch.setattr(row_blocks, "IN_MEMORY", 300)
        patch.setattr(lazy_table, "GROUP", 10)
        table = BlockTable("drops", in_blocks(columns, cuts), {"port": PORTS, "cause": CAUSES})
        expected = whole(columns)
        assert table.num_rows == count
        some = table.select(("cause", "packet"))
        assert some["packet"].to_pylist() == expected["packet"].to_pylist()
        assert some["cause"].to_pylist() == expected["cause"].to_pylist()
        parts = list(table.parts(("port",)))
        assert [len(part) for part in parts] == [10] * (count // 10) + [count % 10] * (count % 10 > 0)
        assert [port for part in parts for port in part["port"].to_pylist()] == expected["port"].to_pylist()
        assert table.table().equals(expected)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 45])
def test_block_table_writes_the_bytes_of_an_in_memory_table(count: int, small: None, tmp_path: Path):
    columns = drops(np.random.default_rng(3), count, 4)
    table = BlockTable("drops", in_blocks(columns, [3, 4, 20, 33]), {"port": PORTS, "cause": CAUSES})
    table.write(tmp_path / "blocks")
    InMemoryTable(whole(columns)).write(tmp_path / "whole")
    pyarrow.parquet.write_table(whole(columns), tmp_path / "plain", row_group_size=10)
    found = [(tmp_path / name).read_bytes() for name in ("blocks", "whole", "plain")]
    assert found[0] == found[2] and found[1] == found[2]


def test_rows_with_equal_keys_keep_their_insertion_order(small: None):
    count = 50
    columns = drops(np.random.default_rng(5), count, 0)
    columns["message"] = np.sort(columns["message"])
    made = in_blocks(columns, [], key=("message",))
    found = np.concatenate([batch["place"] for batch in made.batches(("place",))])
    assert found.tolist() == columns["place"].tolist()


def test_column_store_spills_to_file_and_reads_only_requested_columns(small: None, monkeypatch: pytest.MonkeyPatch):
    """The store keeps the first 300 bytes in memory; of the rest it reads only requested columns."""
    shelf = ColumnStore()
    places = [shelf.put(bytes(100)) for _ in range(5)]
    assert [isinstance(place, bytes) for place in places] == [True] * 3 + [False] * 2
    assert all(shelf.get(place) == bytes(100) for place in places)
    columns = drops(np.random.default_rng(1), 70, 0) | {"time_ps": np.arange(70)}
    made = in_blocks(columns, [])
    read: list[Any] = []
    plain = ColumnStore.get

    def get(self: ColumnStore, place: Any) -> bytes:
        read.append(place)
        return plain(self, place)

    monkeypatch.setattr(ColumnStore, "get", get)
    list(made.batches(("packet",)))
    assert len(read) == 10  # of ten blocks that do not overlap; else what orders them, too


def test_row_blocks_stay_in_memory_when_disk_is_full(small: None, monkeypatch: pytest.MonkeyPatch):
    columns = drops(np.random.default_rng(2), 100, 3)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    table = BlockTable("drops", in_blocks(columns, [50]), {"port": PORTS, "cause": CAUSES})
    assert table.table().equals(whole(columns))


def test_block_table_is_cached_and_can_be_pickled(small: None):
    columns = drops(np.random.default_rng(2), 40, 3)
    table = BlockTable("drops", in_blocks(columns, []), {"port": PORTS, "cause": CAUSES})
    result = Result.build({}, {"drops": table})
    assert result.drops is result.drops
    assert result.stored_rows("drops").num_rows == 40 and "40 drops" in repr(result)
    assert pickle.loads(pickle.dumps(result)).drops.equals(whole(columns))
    assert copy.copy(result).drops.equals(result.drops)


def test_dictionary_encoded_maps_texts_to_codes():
    for column in (
        pyarrow.chunked_array([["b", "a"], ["b"]]),
        pyarrow.chunked_array([["b", "a"], ["b"]]).dictionary_encode(),
    ):
        codes, texts = dictionary_encoded(column)
        assert [texts[code] for code in codes.tolist()] == ["b", "a", "b"] and sorted(texts) == ["a", "b"]
    assert dictionary_encoded(pyarrow.chunked_array([], pyarrow.string())) == (pytest.approx(np.zeros(0)), [])
