"""Formats that a rollout can leave the record in, one module each, and the two that conversations come in by."""
