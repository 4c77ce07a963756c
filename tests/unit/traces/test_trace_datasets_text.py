"""Text as tokens: how each kind numbers them, what is refused, which spans a batch holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradwire.scenarios.errors import TraceError
from gradwire.traces.datasets.text import load_text, synthetic_text


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("to be, or not to be:\nto sleep\n", encoding="utf-8")
    return path


def test_byte_tokens_equal_file_bytes(text: Path) -> None:
    dataset = load_text(text, "byte", 300)
    assert bytes(dataset.ids.tolist()) == text.read_bytes()
    assert (dataset.name, dataset.distinct, dataset.unknown) == ("words", 256, 0)


def test_character_tokens_are_numbered_by_frequency(text: Path) -> None:
    """Counts: blank 6, o 5, e and t 4; ties are ordered alphabetically."""
    dataset = load_text(text, "char", 100)
    written = text.read_text()
    number = dict(zip(written, dataset.ids.tolist(), strict=True))
    assert [number[c] for c in " oet"] == [1, 2, 3, 4]
    assert len(set(dataset.ids.tolist())) == len(set(written)) == dataset.distinct - 1
    assert dataset.unknown == 0


def test_words_beyond_vocabulary_map_to_unknown_token(text: Path) -> None:
    """The vocabulary of four holds "unknown", "to" (3 times), line end (2) and "be" (2)."""
    dataset = load_text(text, "word", 4)
    to, be, end, unknown = 1, 3, 2, 0
    expected = [to, be, unknown, unknown, unknown, to, be, unknown, end, to, unknown, end]
    assert dataset.ids.tolist() == expected
    assert dataset.unknown == 5 / 12
    assert load_text(text, "word", 100).unknown == 0


def test_text_files_of_folder_are_joined_in_path_order(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, content in (("b.txt", "second"), ("a.txt", "first"), ("deep/c.txt", "third"), ("d.md", "no")):
        (tmp_path / name).write_text(content)
    assert bytes(load_text(tmp_path, "byte", 256).ids.tolist()) == b"first\nsecond\nthird"


def test_invalid_text_sources_raise_trace_error(tmp_path: Path, text: Path) -> None:
    with pytest.raises(TraceError, match="no such text; expected a text file, or a folder"):
        load_text(tmp_path / "nowhere", "byte", 256)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="empty: holds no text"):
        load_text(tmp_path / "empty", "byte", 256)
    with pytest.raises(TraceError, match="tokens 'syllable'; expected byte or char or word"):
        load_text(text, "syllable", 256)
    with pytest.raises(TraceError, match="vocabulary of 255"):
        load_text(text, "byte", 255)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(TraceError, match=r"latin\.txt: is not UTF-8 \(byte 3\)"):
        load_text(latin, "char", 256)
    assert len(load_text(latin, "byte", 256)) == 4
    blank = tmp_path / "blank.txt"
    blank.write_text("   ")
    with pytest.raises(TraceError, match="holds no words"):
        load_text(blank, "word", 256)


def test_batches_are_seeded_random_spans_of_text(text: Path) -> None:
    dataset = load_text(text, "byte", 256)
    one, two, other = (dataset.batches(64, 20, seed) for seed in (1, 1, 2))
    first = next(one)
    assert (first.shape, first.dtype) == ((64, 20), np.int64)
    np.testing.assert_array_equal(first, next(two))
    assert (first != next(other)).any()
    assert (first != next(one)).any()
    spans = {text.read_bytes()[start : start + 20] for start in range(len(dataset) - 19)}
    assert {bytes(row.tolist()) for row in first} == spans  # 64 draws meet all of the few places there are
    assert next(dataset.batches(2, len(dataset), 1)).shape == (2, len(dataset))
    with pytest.raises(TraceError, match=f"words: {len(dataset)} tokens; expected at least 50"):
        next(dataset.batches(1, 50, 1))
    with pytest.raises(TraceError, match="batch 0"):
        next(dataset.batches(0, 5, 1))


def test_synthetic_text_uses_the_whole_vocabulary() -> None:
    dataset = synthetic_text(50, 1, 5000)
    assert set(dataset.ids.tolist()) == set(range(50))
    np.testing.assert_array_equal(dataset.ids, synthetic_text(50, 1, 5000).ids)
