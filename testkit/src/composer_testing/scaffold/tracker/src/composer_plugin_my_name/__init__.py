"""A tracker that writes the metrics of every step as CSV. See the README beside this package."""
