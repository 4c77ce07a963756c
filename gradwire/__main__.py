"""Runs the `gradwire` command for `python -m gradwire`."""

from gradwire.cli import main

main()
