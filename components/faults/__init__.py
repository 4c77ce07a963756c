"""Faults that a scenario can have, one file each.

A fault is a class derived from `LinkFault`, `SwitchFault` or `HostFault` (`gradwire.scenarios.schema.fault`), found by
its file, that says what becomes of its links or its host while it lasts. It happens in the simulator; and, beside
programs of the user's own, on the testbed as far as that goes (`gradwire.emu.planning.programs`).
"""
