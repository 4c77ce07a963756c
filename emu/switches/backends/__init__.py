"""Switch backends of the testbed, one file each: a class derived from `Backend`.

The class names the module that builds the network, which is imported on use, so that reading a scenario imports only
the names.
"""
