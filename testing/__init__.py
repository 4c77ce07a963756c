"""Aids for whoever writes a transport or a load balancer of their own."""
