"""Task packs as data: a task's folder, steps, digest, rubric and MCP servers, the reward that its grader leaves, packs
that a generator writes, new tasks, and `importers` for what others wrote.

Nothing here starts a sandbox or a model.
"""
