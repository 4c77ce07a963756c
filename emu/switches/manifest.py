"""What has to be known of a switch backend without importing it: its name, where it is, and how it balances load."""

from typing import ClassVar


class Backend:
    """Derive from it, and set what is declared here."""

    kind: ClassVar[str]
    """How scenarios call it."""
    module: ClassVar[str]
    """The module that builds its networks; it has a `BackendKind` (`gradwire.emu.switches.base`) called KIND."""
    balancers: ClassVar[tuple[str, ...]]
    """Load balancers that it has, by name: in its own way, not by the functions of `gradwire.components.balancers`."""
