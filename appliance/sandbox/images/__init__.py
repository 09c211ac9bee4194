"""Container images: the base and the harness layers built here, images saved and loaded, and those that tasks bring.

Nothing here starts a rollout.
"""
