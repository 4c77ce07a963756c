"""Switch backends of the testbed, one file each: a class derived from `Backend`, found by its file.

It names the module that builds the network, which is imported when the testbed wants it: whoever reads a scenario
imports the names alone.
"""
