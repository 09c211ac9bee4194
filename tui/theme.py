"""The colours: calm on dark; what they say is always said by a glyph and a word too."""

from __future__ import annotations

from textual.theme import Theme

MUTED = "#808a99"
THEME = Theme(
    name="corral",
    primary="#7aa2c4",
    secondary="#7fb4d4",
    accent="#d9b27c",
    foreground="#d5d9e0",
    background="#14171c",
    surface="#14171c",
    panel="#1c2129",
    success="#93c48b",
    warning="#e2b866",
    error="#e57f7f",
    dark=True,
    variables={"muted": MUTED, "footer-description-foreground": MUTED},
)
MONO = Theme(
    name="mono",
    primary="#b0b0b0",
    secondary="#c0c0c0",
    accent="#ffffff",
    foreground="#d0d0d0",
    background="#000000",
    surface="#000000",
    panel="#202020",
    success="#d0d0d0",
    warning="#e0e0e0",
    error="#ffffff",
    dark=True,
    variables={"muted": "#909090", "footer-description-foreground": "#909090"},
)
"""Greys alone; glyphs and words carry what colours would."""
