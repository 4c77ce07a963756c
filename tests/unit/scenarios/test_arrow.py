"""Arrow arrays made of their buffers are those that `pyarrow.array` makes, and nothing is imported for it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow
import pytest

from gradwire.result_store import arrow
from gradwire.result_store.arrow import CodedTexts, arrow_array, take_texts, to_numpy

TYPES = {"bool": pyarrow.bool_(), "string": pyarrow.string(), "float64": pyarrow.float64()}
TYPES |= {name: getattr(pyarrow, name)() for name in ("int8", "int32", "int64")}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], "int64"), ([], "string"), ([], "bool"), ((), "float64"),
        ([1, -1, 2**62], "int64"), (np.arange(7)[::2], "int64"), (np.arange(5), "int8"), ([1, 2], "float64"),
        ([0.5, -1.0], "float64"), (np.array([1.5, np.nan]), "float64"), (np.arange(3, dtype=np.int32), "int64"),
        ([True, False, True] * 5, "bool"), (np.array([True]), "bool"), ([1, None], "int64"), ([None, "a"], "string"),
        ([None], "float64"), ([None, 0.5, 2] * 5, "float64"), ([True, None] * 9, "bool"), ([None] * 3, "string"),
        (["", "a", "Müller", "a"], "string"), (("x",), "string"), (np.arange(3, dtype=np.uint8), "int64"),
    ],
)  # fmt: skip
def test_arrow_array_equals_pyarrow_array(values, kind):
    made, theirs = arrow_array(values, kind), pyarrow.array(values, type=TYPES[kind])
    assert (made.type == theirs.type and made.to_pylist() == theirs.to_pylist()) or np.isnan(values).any()
    made.validate(full=True)


@pytest.mark.parametrize(("values", "kind"), [([300], "int8"), ([2**40], "int32"), (["a"], "int64"), ([1], "string")])
def test_arrow_array_rejects_values_outside_the_type(values, kind):
    with pytest.raises((pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError)):
        arrow_array(values, kind)


@pytest.mark.parametrize("few", [0, 1 << 20])
@pytest.mark.parametrize(
    ("texts", "codes"),
    [
        (["h0", "h10", "", "Müller"], [3, 0, 1, 1, 2, 3]), (["a"], []), ([], []), ([""], [0, 0]), (["a", "bc"], [1] * 100),
    ],
)  # fmt: skip
def test_take_texts_returns_the_text_of_each_code(monkeypatch, few, texts, codes):
    monkeypatch.setattr(arrow, "FEW_BYTES", few)
    made = take_texts(texts, np.array(codes, dtype=np.int32))
    made.validate(full=True)
    assert made.type == pyarrow.string() and made.to_pylist() == [texts[code] for code in codes]


def test_arrow_array_does_not_import_pandas():
    code = (
        "import sys, numpy as np\nfrom gradwire.result_store.arrow import CodedTexts, arrow_array\n"
        "arrow_array([1], 'int64'), arrow_array(np.arange(3), 'int64'), arrow_array(['a'], 'string')\n"
        "arrow_array([True], 'bool'), arrow_array([0.5, None], 'float64')\nsys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([1, -1, 2**62]), pyarrow.array([], pyarrow.int64()), pyarrow.array([1, 2, 3, 4], pyarrow.int8())[1:3],
        pyarrow.chunked_array([[1, 2], [], [3, 4]], pyarrow.int32()), pyarrow.chunked_array([], pyarrow.float64()),
        pyarrow.chunked_array([[0.5, -2.0]])[1:], pyarrow.array([1.0, None]), pyarrow.array([1, None, 3]),
        pyarrow.array([True, False]), pyarrow.array(["a", "b"]), pyarrow.array(["a", "b"]).dictionary_encode(),
        pyarrow.array([1, 2], pyarrow.uint8()), pyarrow.array([1.5], pyarrow.float32()),
    ],
    ids=str,
)  # fmt: skip
def test_to_numpy_equals_pyarrow_conversion(column):
    made, theirs = to_numpy(column), column.to_numpy(zero_copy_only=False)
    assert made.dtype == theirs.dtype
    np.testing.assert_array_equal(made, theirs)


@pytest.mark.parametrize("scenario", ["incast", "permutation"], ids=["job", "no job"])
def test_run_command_does_not_import_pandas(tmp_path, scenario):
    """The import of pandas takes a quarter of a second; several calls of Arrow would trigger it."""
    script = (
        "import sys\nfrom gradwire.cli import main\n"
        f"sys.argv = ['gradwire', 'run', {scenario!r}, '--out', {str(tmp_path / 'made')!r}]\n"
        "try:\n    main()\nfinally:\n    print('pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_coded_texts_behave_like_a_list_of_texts():
    codes = np.array([2, 0, 0, 1, 2])
    coded = CodedTexts(["a", "", "µs"], codes)
    texts = ["µs", "a", "a", "", "µs"]
    assert list(coded) == texts and list(coded[1:3]) == texts[1:3] and coded[-1] == "µs"
    assert arrow_array(coded, "string").equals(arrow_array(texts, "string"))
