"""One step from the record to the next policy version: advantages, rows packed into trees, attention, losses, critic,
gates on the gap to the sampler, checkpoints, the cold start, and the trainer process with its ranks.

The only package that computes with torch; it starts no engine and no sandbox.
"""
