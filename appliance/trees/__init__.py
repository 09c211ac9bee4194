"""From the recorded calls of a rollout to its prefix tree: who called, which branch a call is, what is left out of
training, the token paths to train on, why the tree forks, and how much of it is used.

Pure: no file, clock, process, database or tensor.
"""
