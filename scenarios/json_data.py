"""Types of what a JSON or TOML file holds, named once; its values can be anything that its reader has not checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""A document, or a part of one."""
JsonView = Mapping[str, Any]
"""The same where it is only read."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is none, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
