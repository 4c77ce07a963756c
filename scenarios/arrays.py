"""Types of arrays and columns.

Only packages that compute with arrays import this module: checking a scenario must not load NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""Exact values: times, sizes, counts."""
Floats = NDArray[np.float64]
Float16s = NDArray[np.float16]
Flags = NDArray[np.bool_]
AnyInts = NDArray[np.integer]
"""Integers of any width."""
AnyArray = NDArray[np.generic]
"""Values of any type, only passed on, counted or compared."""

Column = Sequence[object] | AnyArray
"""One value per row of a table."""
Columns = dict[str, Column]
"""A table as columns by name, as `gradwire.result_store.table_schema.make_table` takes it."""
