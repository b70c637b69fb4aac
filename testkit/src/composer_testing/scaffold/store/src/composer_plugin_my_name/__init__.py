"""A store that keeps blobs in one SQLite file. See the README beside this package."""
