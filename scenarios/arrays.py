"""Type aliases name NumPy arrays (`Ints`, `Floats`, `Flags`) and tables as columns by name (`Columns`).

Checking a scenario must not load NumPy: type checkers alone read these names there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
else:
    Ints = Floats = Float16s = Flags = AnyInts = AnyArray = Any

Column = Sequence[object] | AnyArray
"""One value per row of a table."""
Columns = dict[str, Column]
"""A table as columns by name, as `gradwire.result_store.table_schema.make_table` takes it."""
