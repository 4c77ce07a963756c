"""Faults of a scenario, one file each.

A fault is a class derived from `LinkFault`, `SwitchFault` or `HostFault` (`gradwire.scenarios.schema.network.fault`),
found by its file, that defines its effect on links or a host while it lasts. It happens in the simulator and, as far as
possible, on the testbed beside user programs (`gradwire.emu.planning.user_programs`).
"""
