"""A sampler of bigrams. See the README beside this package."""
