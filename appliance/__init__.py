"""Corral: train agent policies inside the harnesses they will run in."""
