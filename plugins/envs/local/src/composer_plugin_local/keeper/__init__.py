"""The keeper: one process that holds all mounts and starts all commands of the namespaces tier. Standard library only.

It runs in namespaces of its own (user, mount, pid), so whatever ends it, the kernel takes every mount and every
process with it. The modules: `start` (enter the namespaces), `server` (requests), `layers` (overlays), `files`
(paths that cannot escape), `commands` (running and limiting), `slots` (who spawns), `cgroups`, `wire`, `linux`.
"""
