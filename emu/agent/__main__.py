"""`python -m emu.agent`: an agent over stdin and stdout, for launchers that run a command (`emu.launchers.Command`)."""

from emu.agent.agent import main

main()
