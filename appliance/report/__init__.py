"""What people and other tools read from the record: status, summaries, charts, confidence intervals, transcripts, tree
views, replay, and `export`.

Nothing here makes a rollout or changes one.
"""
