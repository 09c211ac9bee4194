"""Podman: containers, workspaces, the pool, hosts."""
