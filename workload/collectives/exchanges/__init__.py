"""Exchanges of data-parallel training: parameter server, FSDP, sharded, overlapped, rank graphs."""
