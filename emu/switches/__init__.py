"""Switch backends: what switches and cables are made of. One file each; see `emu.switches.base` and `emu.choose`."""
