"""Tables of a scenario, without a scenario around them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from gradwire.scenarios.schema.scenario import Transport
from gradwire.scenarios.schema.transport import AnyTransport


def transport(kind: str, **settings: Any) -> Transport:
    """The transport table of a scenario: `kind` is a short name or one of yours, "module:Class"; settings as in the file.

    Raises
    ------
    pydantic.ValidationError
        A setting that the transport does not have, or a value that it cannot have.
    """
    table: Transport = TypeAdapter(AnyTransport).validate_python({"kind": kind, **settings})
    return table
