"""A context that carries the latest results into a new branch. See the README beside this package."""
