"""Agent over stdin and stdout, for launchers that run a command (`gradwire.emu.control.launchers.CommandLauncher`)."""

from gradwire.emu.agent.agent import main

main()
