"""Gradient reduction and data-parallel training with a network in the loop.

Reducers, one file each in `reducers`, encode gradients; `exchange` carries the encodings of all workers across a
network that may lose packets. Importing this package does not import torch; using it does.
"""
