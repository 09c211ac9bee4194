"""Agent programs as data."""
