"""Switch backends: implementations of switches and cables, one file each.

See `gradwire.emu.switches.backend_kind` and `gradwire.emu.planning.backend_choice`.
"""
