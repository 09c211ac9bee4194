"""The command line, one module a group of commands, each of which adds its commands to the parser with `add`.

Arguments come in and text or JSON goes out; the work is done in the packages below, and none of them imports a
command.
"""
