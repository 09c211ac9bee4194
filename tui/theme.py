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
