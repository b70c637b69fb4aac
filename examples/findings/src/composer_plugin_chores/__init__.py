"""See the README beside this package."""
