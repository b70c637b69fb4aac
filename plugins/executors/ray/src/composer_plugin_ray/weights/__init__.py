"""Weights from one trainer to many samplers: whole files now and then, and bit-exact differences between them.

Nothing here knows Ray or torch. `publisher` and `receiver` are the two ends, `chain` is what lies between them in a
`store`, `delta` is a file of differences, `codec` one piece of it, `layout` the weights' own file.
"""
