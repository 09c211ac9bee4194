"""Packs, their steps, rubrics and rewards, MCP servers."""
