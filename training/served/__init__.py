"""Trainers whose workers have parameters of their own, and ask a server for what they do not know.

One file for each way: `asynchronous`, `slimdp`, `mipd`, `mp2`, `wnn`; what a scenario says of them is in
`gradwire.training.systems`.
"""
