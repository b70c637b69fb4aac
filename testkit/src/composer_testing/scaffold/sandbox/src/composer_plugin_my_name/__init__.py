"""Sandboxes that are folders of this machine. See the README beside this package."""
