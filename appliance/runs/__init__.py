"""Runs from their start to their end: the supervisor, which rollouts are made when, one rollout from task to reward,
judges and teachers, commands to a live run, evaluations, and whether a run fits into memory.

It drives every part below and knows no terminal.
"""
