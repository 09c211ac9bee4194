"""Runs from their start to their end: the supervisor, which rollouts are made when, one rollout from task to reward,
judges and teachers, commands to a live run, evaluations, and how much memory a run takes (`memory_plan`) before it
is let start (`room`).

It drives every part below and knows no terminal.
"""
