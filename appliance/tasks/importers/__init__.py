"""Tasks and packs that others wrote, as packs of Corral."""
