"""A reward for solving a task with few tokens. See the README beside this package."""
