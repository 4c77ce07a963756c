"""Benchmarks of gradwire itself, run by hand; figures and machines are in README.md."""
