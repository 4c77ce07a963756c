"""`transport` builds a transport's table of settings for tests, without a scenario around it."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from gradwire.scenarios.schema.network.transport import AnyTransport
from gradwire.scenarios.schema.network.transport_base import Transport


def transport(kind: str, **settings: Any) -> Transport:
    """Return a transport table: `kind` is a short name or your "module:Class"; settings as in the file.

    Raises pydantic.ValidationError if the transport does not have a setting, or the setting's value is invalid.
    """
    table: Transport = TypeAdapter(AnyTransport).validate_python({"kind": kind, **settings})
    return table
