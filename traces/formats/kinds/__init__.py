"""Trace formats, one file each with a class derived from `Format` (`gradwire.traces.formats.base`)."""
