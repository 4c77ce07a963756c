"""What a scenario has to know of a switch backend: its name, and where it is."""

from typing import ClassVar


class Backend:
    """Derive from it, and set what is declared here."""

    kind: ClassVar[str]
    """How scenarios call it."""
    module: ClassVar[str]
    """The module that builds its networks; it has a `BackendKind` (`gradwire.emu.switches.base`) called KIND."""
