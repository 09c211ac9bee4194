"""Agent programs as data: harness files read and checked, the catalogue of them and which tasks each can take, the MCP
configuration they are given, and new files for programs of one's own.

Nothing here runs a harness: `runs` does, in a `sandbox`.
"""
