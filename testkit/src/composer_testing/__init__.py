"""Test kit for plugin authors: contract suites to subclass, public fakes, pytest fixtures."""
