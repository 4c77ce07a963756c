"""Switch backends: what switches and cables are made of. One file each; see `gradwire.emu.switches.base` and
`gradwire.emu.planning.choose`."""
