"""A tool that counts the words of a file. See the README beside this package."""
