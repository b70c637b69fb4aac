"""The agent inside a machine: process 1, standard library only, outside the limits of what it runs.

It travels as one file (a zip archive that Python runs, see `initramfs`), so it needs nothing of a guest but Python 3.9.
The modules: `agent` (requests, the loop), `line` (the way to the host), `system` (mounts, identity, clock, entropy),
`commands` and `groups` (running and limiting), `workspace` and `changes` (files, and what differs from the template),
`wire`, which the host shares; and the parts of agents that other backends use too, in `composer_envkit.agent`.
"""

PORT = "composer.agent"
"""Name of the serial port to the host."""
VSOCK = "composer.agent=vsock"
"""Word of the kernel's command line: the host connects to a vsock port instead."""
VSOCK_PORT = 1000
"""A privileged one, so that no command could listen in the agent's stead."""
OWNER = 65534
"""User and group of the workspace and of every command."""
