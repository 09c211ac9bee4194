"""A run's rollouts in the formats of other tools, one module each, and conversations that come in for the cold start.

Nothing here prints or asks.
"""
