"""The terminal UI: `pages` read what `views` draw with `widgets`, and every act of a user is a command left in the
record.

No run depends on it, and it may be closed at any time.
"""
