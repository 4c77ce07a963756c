"""The compiled packet engine: hosts, switches and links as flat integer state.

`fabric.Fabric` is the door; `layout` says where every word lives, `core` holds the compiled steps, `specialise` binds
transports, balancers and queue policies into them, `memory` lays a network out.
"""
