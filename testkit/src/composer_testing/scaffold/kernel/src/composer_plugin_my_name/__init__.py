"""Experts of a mixture, one after another. See the README beside this package."""
