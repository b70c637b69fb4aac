"""Fixtures for plugin authors, loaded by pytest through the `pytest11` entry point."""
