"""Runs the agent of one host over stdin and stdout, for launchers that start a command
(`gradwire.emu.control.launchers.CommandLauncher`).
"""

from gradwire.emu.agent.agent import main

main()
