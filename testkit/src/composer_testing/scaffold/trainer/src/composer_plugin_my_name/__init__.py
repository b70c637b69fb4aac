"""A trainer by plain gradient descent. See the README beside this package."""
