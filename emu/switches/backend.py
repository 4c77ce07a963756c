"""Declaration of a switch backend, readable without importing it: name, module and load balancers."""

from typing import ClassVar


class Backend:
    """Base class of declarations; derived classes set its attributes."""

    kind: ClassVar[str]
    """Its name in scenarios."""
    module: ClassVar[str]
    """The module that builds its networks, with a `BackendKind` (`gradwire.emu.switches.backend_kind`) called KIND."""
    balancers: ClassVar[tuple[str, ...]]
    """Names of its load balancers, which do not use the functions of `gradwire.protocols.load_balancers`."""
