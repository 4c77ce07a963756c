"""`python -m gradwire`: the `gradwire` command."""

from gradwire.cli import main

main()
