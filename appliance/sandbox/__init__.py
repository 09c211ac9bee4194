"""Podman and all that surrounds a rollout's container: its specification and seccomp profile, workspaces made, made
safe to grade (`freeze`) and handed from step to step (`handover`), the pool of waiting sandboxes, local and ssh
hosts, and `images`.

It knows no model, no reward and no schedule.
"""
