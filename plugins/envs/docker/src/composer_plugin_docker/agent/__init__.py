"""What runs inside a container as its first process: standard library only, and nothing of the image.

It is shipped with an interpreter of its own (`interpreter.py` on the host's side), speaks frames on its standard input
and output, and holds the few capabilities that keep it out of its commands' reach; commands hold none.
"""
