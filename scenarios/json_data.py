"""Types of what a JSON or TOML file holds, named once; its values can be anything that its reader has not checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""A document, or a part of one."""
JsonView = Mapping[str, Any]
"""The same where it is only read."""
