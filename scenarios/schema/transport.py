"""Transports: what carries a message from one host to another, and its parameters.

In a scenario either a name (`transport = "dctcp"`, everything at its default) or a table
(`[transport] kind = "dctcp"`, `g = 0.125`). A transport of your own is named by where it is,
`kind = "my_module:MyTransport"`, and takes whatever parameters it declares.

Each of those that come with gradwire is a class in a file of its own (see `gradwire.scenarios.components`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict

from gradwire.scenarios.components import component
from gradwire.scenarios.schema.chosen import Chosen
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.scenarios.units import Bytes
from gradwire.scenarios.wire import TCP_OVERHEAD, UDP_OVERHEAD

DEFAULT_KIND = "dctcp"


class UserTransport(Transport):
    """A transport of the user's own. The fields of a class derived from Transport are the keys of its
    table, and checked; a class derived from nothing gets its parameters as they are written."""

    model_config = ConfigDict(extra="allow")
    union_tag: ClassVar[str] = "user"

    may_lose = True

    @property
    def parameters(self) -> dict[str, Any]:
        """What the table holds beyond the common parameters."""
        return dict(self.model_extra or {})

    @property
    def overhead(self) -> Bytes:
        return Bytes(max(TCP_OVERHEAD, UDP_OVERHEAD))

    @property
    def ecn_capable(self) -> bool:
        return bool(getattr(self, "ecn", True))


def default_transport() -> Transport:
    """What a scenario has that names none."""
    owner = component("transport", DEFAULT_KIND)
    assert owner is not None
    default: Transport = owner(kind=DEFAULT_KIND)
    return default


def _named(value: Any) -> Any:
    """A bare name is a table with nothing but that kind; a table without one has the default kind."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": DEFAULT_KIND, **value} if isinstance(value, dict) else value


AnyTransport = Annotated[Transport, Chosen("transport", own=UserTransport), BeforeValidator(_named)]
