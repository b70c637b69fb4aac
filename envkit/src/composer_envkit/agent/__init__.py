"""Parts of agents: programs of a backend that run beside the commands of a sandbox, in a container, a machine, a jail.

Standard library of Python 3.9 only and nothing of core, so that the sources can be sent along: as modules that an
interpreter of the agent's own holds, or in a zip archive that Python runs. `files` (paths that cannot lead out),
`streams` (what a command prints and reads), `frames` (talk with whoever started the agent), `linux` (system calls).
"""
