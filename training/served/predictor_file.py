"""Files of predictors: an `.npz` with the weights by name and a manifest. Without torch: `predictor` has the nets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import parse_json

BUNDLED = Path(__file__).resolve().parents[1] / "predictors"
SHIPPED: Mapping[tuple[str, str], str] = {
    ("mp2", "bundled"): "mp2.npz", ("mp2", "several"): "mp2-several.npz", ("wnn", "bundled"): "wnn.npz",
}  # fmt: skip
"""Files there, by what they predict for and what they are called: of one model's trainings, or of several models'."""


def place_of(kind: str, name: str | Path) -> Path:
    """The file of a predictor, by name or as it is."""
    shipped = SHIPPED.get((kind, str(name)))
    return Path(name) if shipped is None else BUNDLED / shipped


def expected_of(kind: str) -> str:
    """What would have been right."""
    return f"a file that `gradwire predictor {kind}` wrote"


def read_predictor(kind: str, name: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays by name, manifest) of a predictor by name (`SHIPPED`), or of a file.

    Raises
    ------
    TraceError
        It is no such file.
    """
    place, expected = place_of(kind, name), expected_of(kind)
    arrays = _arrays(place, expected)
    try:
        manifest = parse_json(str(arrays.pop("manifest")))
        found = manifest["kind"]
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(f"is no predictor ({str(error).splitlines()[0]})", str(place), expected) from None
    if found != kind:
        raise TraceError(f"is a predictor for {found}", str(place), expected)
    return arrays, manifest


def _arrays(place: Path, expected: str) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name."""
    try:
        with np.load(place, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", str(place), expected) from None
    except Exception:  # a damaged file makes NumPy and zipfile raise almost anything, with advice that is not ours
        raise TraceError("is no predictor (no .npz file of numbers)", str(place), expected) from None
