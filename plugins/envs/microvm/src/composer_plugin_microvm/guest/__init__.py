"""The agent inside a machine: process 1, standard library only, outside the limits of what it runs.

It travels as one file (a zip archive that Python runs, see `image`), so it needs nothing of a guest but Python 3.9. The
modules: `agent` (requests, the loop), `system` (mounts, identity, clock, entropy), `commands` and `groups` (running and
limiting), `files` and `changes` (paths that cannot lead out), `linux` (system calls), `wire`, which the host shares.
"""
