"""A plugin to learn from; `plugin` is its hook module."""
