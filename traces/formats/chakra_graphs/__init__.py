"""Graphs of Chakra files: reading, repair, and replay for all ranks."""

COMP, COMM_COLL = 4, 7  # of NodeType [et_def.proto]
STRING = 29  # field number of an attribute's text
