"""The SQLite record that all processes share: tables and migrations, calls as nodes of tokens, compressed bodies,
queries, retention, and the lock that admits one supervisor.

It never decides what a run does next, and no other package opens a record's file.
"""
