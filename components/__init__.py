"""What a scenario chooses by name and both worlds run: transports, load balancers and queue policies.

Each is a handful of small compiled functions over the words that `layout` names: the simulator compiles them into its
engine, the testbed runs the same functions as plain Python on the records of its sockets. `find` gets one by name, or
from a file of the user's own.
"""
