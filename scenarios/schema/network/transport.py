"""`AnyTransport` validates a scenario's transport, a name or a table of parameters, built-in or user-defined.

A scenario holds either a name (`transport = "dctcp"`, everything at its default) or a table (`[transport] kind =
"dctcp"`, `g = 0.125`). A user-defined transport is named by its location, `kind = "my_module:MyTransport"`, and takes
the parameters it declares.

Each bundled transport is a class in its own file (see `gradwire.scenarios.loading.registry`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict

from gradwire.scenarios.loading.registry import component
from gradwire.scenarios.schema.kinds import ComponentByKind
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import Bytes
from gradwire.scenarios.wire import TCP_OVERHEAD, UDP_OVERHEAD

DEFAULT_KIND = "dctcp"


class UserTransport(Transport):
    """User-defined transport. The fields of a class derived from Transport are the keys of its table, and checked; any
    other class gets its parameters as they are written."""

    model_config = ConfigDict(extra="allow")
    union_tag: ClassVar[str] = "user"

    may_lose = True

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the table beyond the common ones."""
        return dict(self.model_extra or {})

    @property
    def overhead(self) -> Bytes:
        return Bytes(max(TCP_OVERHEAD, UDP_OVERHEAD))

    @property
    def ecn_capable(self) -> bool:
        return bool(getattr(self, "ecn", True))


def default_transport() -> Transport:
    """Return the transport of a scenario that names none."""
    owner = component("transport", DEFAULT_KIND)
    assert owner is not None
    default: Transport = owner(kind=DEFAULT_KIND)
    return default


def _named(value: Any) -> Any:
    """Return the table of a bare name, or a table with the default kind if it has none."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": DEFAULT_KIND, **value} if isinstance(value, dict) else value


AnyTransport = Annotated[Transport, ComponentByKind("transport", own=UserTransport), BeforeValidator(_named)]
