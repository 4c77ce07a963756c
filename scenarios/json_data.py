"""Type aliases name unvalidated JSON and TOML documents; `parse_json` reads a JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""A document, or a part of one."""
JsonView = Mapping[str, Any]
"""A read-only document."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
