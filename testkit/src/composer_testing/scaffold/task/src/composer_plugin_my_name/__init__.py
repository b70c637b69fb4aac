"""A task set of small functions to repair. See the README beside this package."""
