"""Types of arrays, columns and JSON, named once.

Only the rooms that compute with arrays import this module: checking a scenario must not load numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""Times, sizes, numbers of things: whatever is exact."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
AnyInts = NDArray[np.integer]
"""Whole numbers of whatever width they are stored in."""
AnyArray = NDArray[np.generic]
"""Values of whatever kind: only handed on, counted or compared."""

Column = Sequence[object] | AnyArray
"""One value per row of a table."""
Columns = dict[str, Column]
"""A table by the names of its columns, as `gradwire.scenarios.result.make_table` takes it."""

Json = dict[str, Any]
"""What a JSON or TOML file holds, or will: its values can be anything that its reader has not checked."""
JsonView = Mapping[str, Any]
"""The same where it is only read."""
