"""A run's configuration: every key with its default and unit, read from TOML, environment and command line and
checked, and where state lies on disk.

Nothing here opens a pack, a model or the record.
"""
