"""Wire formats as pure modules: one a format, each with the same functions; `body` reads."""
