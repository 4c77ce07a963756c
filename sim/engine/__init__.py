"""The compiled packet engine: hosts, switches and links as flat integer state.

`fabric.Fabric` is the interface and `time_advance` its main loop; `gradwire.jit.records` declares the state, `core`
holds the compiled steps, `specialization` binds transports, balancers and queue policies into them, `memory` lays a
network out.
"""
