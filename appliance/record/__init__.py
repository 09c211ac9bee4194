"""The SQLite record: schema, calls, queries, retention."""
