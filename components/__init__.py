"""What a scenario chooses by name and both worlds run: transports, load balancers and queue policies.

Each is a handful of small compiled functions over the words that `layout` names: the simulator compiles them into its
engine, the testbed compiles the same functions for the records of its sockets. `find` gets one by name, or from a file
of the user's own. What is compiled is known by a hash of all that it is made of (`identity`), and kept (`engines`,
`whole`, `objects`).
"""
