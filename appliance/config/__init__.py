"""One TOML a run: its keys, where each value comes from, and where state lies."""
