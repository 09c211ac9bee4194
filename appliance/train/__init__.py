"""One step from the record to the next policy version: group-relative advantages, rows packed into trees, attention,
losses with their KL term, critic and `gae`, gates on the gap to the sampler, checkpoints, the cold start
(supervised learning from a teacher), and the trainer process with its ranks.

The only package that computes with torch; it starts no engine and no sandbox.
"""
