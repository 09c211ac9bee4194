"""Rollouts made, graded, scheduled and evaluated."""
