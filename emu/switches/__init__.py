"""Switch backends: what switches and cables are made of. One file each, one line here; see `emu.switches.base`."""

from __future__ import annotations

from importlib import import_module

from emu.switches.base import BackendKind

KINDS = {
    "red": "emu.switches.red:Red",
    "bpf": "emu.switches.bpf:Bpf",
    "userspace": "emu.switches.userspace:Userspace",
}
"""In the order in which `auto` prefers them."""


def backend_kind(name: str) -> BackendKind:
    """The kind of backend of that name."""
    module, found = KINDS[name].split(":")
    kind: BackendKind = getattr(import_module(module), found)()
    return kind
