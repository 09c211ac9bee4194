"""Corral: train agent policies inside the harnesses they will run in.

Here lie the command line's entry, the types that all packages share and the tree of errors; everything else lives
in a package, whose docstring says what it holds.
"""
