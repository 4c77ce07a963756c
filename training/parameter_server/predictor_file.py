"""`read_predictor` loads the weights and manifest of a predictor file (`.npz`) without torch, for the module
`predictor` and scenario checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import parse_json

BUNDLED = Path(__file__).resolve().parents[1] / "predictors"
BUNDLED_FILES: Mapping[tuple[str, str], str] = {
    ("mp2", "bundled"): "mp2.npz",
    ("mp2", "several"): "mp2-several.npz",
    ("wnn", "bundled"): "wnn.npz",
}
"""Bundled files by system and name: made from training runs of one model, or of several models."""
UNPREDICTED = ("hold", "none")
"""Values of `predictor` that need no file."""


def predictor_path(kind: str, name: str | Path) -> Path:
    """Return the path of a predictor, by bundled name or as given."""
    shipped = BUNDLED_FILES.get((kind, str(name)))
    return Path(name) if shipped is None else BUNDLED / shipped


def expected_file(kind: str) -> str:
    """Return the `expected` part of an error message."""
    return f"a file that `gradwire predictor {kind}` wrote"


def read_predictor(kind: str, name: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (arrays by name, manifest) of a predictor by name (`BUNDLED_FILES`), or of a file. Raises TraceError if
    the file is not a predictor of this kind."""
    path, expected = predictor_path(kind, name), expected_file(kind)
    arrays = _arrays(path, expected)
    try:
        manifest = parse_json(str(arrays.pop("manifest")))
        found_kind = manifest["kind"]
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(f"is not a predictor ({str(error).splitlines()[0]})", str(path), expected) from None
    if found_kind != kind:
        raise TraceError(f"is a predictor for {found_kind}", str(path), expected)
    return arrays, manifest


def _arrays(path: Path, expected: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", str(path), expected) from None
    except Exception:  # a damaged file makes NumPy and zipfile raise almost anything, with advice that is not ours
        raise TraceError("is not a predictor (not an .npz file of numbers)", str(path), expected) from None
