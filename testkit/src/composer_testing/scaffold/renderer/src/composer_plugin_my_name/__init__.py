"""A renderer of calls as JSON. See the README beside this package."""
