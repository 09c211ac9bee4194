"""The terminal UI: reads the record, draws it, and writes one command, `stop`."""
