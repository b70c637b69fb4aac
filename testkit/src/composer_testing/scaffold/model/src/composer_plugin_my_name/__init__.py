"""A policy that runs on the mean of what it has read. See the README beside this package."""
