"""What is learned: gradient reduction, and data-parallel training with a network in the loop.

`reducers` - what a worker sends instead of a gradient, one file each - stand before `exchange`, which carries the
reduced gradients of all workers across a network that may lose packets of them. Importing this package does not import
torch; using it does.
"""
