"""Takes out of a text what must not leave this machine: keys, tokens, passwords, and whose machine it is.

It errs on the side of taking out too much; what is left is for a bug report, not for a program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

HIDDEN = "[redacted]"
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|cookie|authorization|bearer", re.I)
_HARMLESS_NAME = re.compile(r"tokens|key_env|tokenizer|token_|_token$|keyring", re.I)
"""Counts of tokens, and the name of the variable that holds a key, are no secrets."""
_PATTERNS = (
    # a rollout's or a proxy's token in a path
    (re.compile(r"(/s/)[\w.~-]{12,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    # user and password, or a token, in an address
    (re.compile(r"(\w+://)[^/@\s'\"]+@"), rf"\1{HIDDEN}@"),
    # keys by the prefixes that their makers give them
    (
        re.compile(
            r"\b(?:sk|pk|rk|hf|ghp|gho|ghs|github_pat|xox[abp]|glpat|npm|AIza|AKIA|pypi)[-_]?[A-Za-z0-9_-]{16,}"
        ),
        HIDDEN,
    ),
    # NAME=value, "name": "value", --name value, for names that say what they hold
    (
        re.compile(
            r"(?i)(\b[\w-]*(?:api[-_]?key|secret|passw(?:or)?d|credential|auth[-_]?token|access[-_]?token|_token|_key)\b"
            r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;}]{4,}"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), HIDDEN),
)


def redacted(text: str) -> str:
    """`text` without what looks like a secret; the user's home folder becomes `~`."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    user_home = str(Path.home())
    return text.replace(user_home, "~") if len(user_home) > len("/root") or user_home == "/root" else text


def redacted_value(name: str, value: object) -> object:
    """A value as deep as it goes; whole where its name says that it is a secret."""
    if isinstance(value, Mapping):
        return {str(key): redacted_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_value(name, inner) for inner in value]
    if isinstance(value, str):
        if value and SECRET_NAME.search(name) and not _HARMLESS_NAME.search(name):
            return HIDDEN
        return redacted(value)
    return value
