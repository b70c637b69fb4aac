"""The keeper: one process that holds all mounts and starts all commands of the namespaces tier. Standard library only.

It runs in namespaces of its own (user, mount, pid, network), so whatever ends it, the kernel takes every mount and
every process with it. The modules: `start` (enter the namespaces), `server` (requests), `sandboxes`, `layers`,
`copying` and `changes` (their files), `rooms` (what commands see), `commands` (running and limiting), `turns` (whose
turn it is), `pauses`, `slots` (who spawns), `cgroups`, `wire`; and the parts of agents that other backends use too, in
`composer_envkit.agent`.
"""
