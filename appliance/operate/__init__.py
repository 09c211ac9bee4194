"""Is it in order, and kept so: machine, harness, pack, record."""
