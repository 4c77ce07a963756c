"""`python -m gradwire.emu.agent`: an agent over stdin and stdout, for launchers that run a command
(`gradwire.emu.control.launchers.Command`)."""

from gradwire.emu.agent.agent import main

main()
