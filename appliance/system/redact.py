"""Takes out of a text what must not leave this machine: keys, tokens, passwords, and whose machine it is.

Three widths. `redacted`, for bug reports, errs on the side of taking out too much. `logged`, for what we say ourselves,
takes out what has the form of a key. `without_secrets`, for what a model or harness said, takes out the secrets we know
and headers that carry one, and else leaves the text as it was said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HIDDEN = "[redacted]"
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|cookie|authorization|bearer", re.I)
_HARMLESS_NAME = re.compile(r"tokens|key_env|tokenizer|token_|_token$|keyring", re.I)
"""Counts of tokens, and the name of the variable that holds a key, are no secrets."""
_PATTERNS = (
    # a rollout's or a proxy's token in a path
    (re.compile(r"(/s/)[\w.~-]{12,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    # user and password, or a token, in an address
    (re.compile(r"(\b\w+://)[^/@\s'\"]+@"), rf"\1{HIDDEN}@"),
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
            r"(?i)(\b[\w-]{0,64}(?:api[-_]?key|secret|passw(?:or)?d|credential|auth[-_]?token|access[-_]?token|_token|_key)\b"
            r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;}]{4,}"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), HIDDEN),
)

LEAST_SECRET = 8
"""Characters below which a variable's value is not taken for a secret: `1` or `true` would be cut out of every text."""
_CARRIERS = (
    # a rollout's token in the path that its harness calls: token_urlsafe(24)
    (re.compile(r"(/s/)[\w-]{32}(?![\w-])"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(authorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(x-(?:goog-)?api-key[\"'\\]*\s*[:=]\s*[\"'\\]*)[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
)
_KEY_FORMS = (
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{16,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(\b\w+://)[^/@:\s'\"]*:[^/@\s'\"]+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(?:sk-|gh[opsu]_|github_pat_|xox[abp]-|glpat-|hf_|AIza|AKIA)[A-Za-z0-9_-]{16,}"), HIDDEN),
)


def own_secrets(environment: Mapping[str, str], names: Iterable[str] = ()) -> tuple[str, ...]:
    """Values of the variables whose names say that they hold a secret, and of those named; the longest first."""
    named = {name: environment.get(name, "") for name in names}
    said = {n: v for n, v in environment.items() if SECRET_NAME.search(n) and not _HARMLESS_NAME.search(n)}
    is_path = {value for value in said.values() if os.path.isabs(value) and os.path.exists(value)}
    found = {value for value in (*named.values(), *said.values()) if len(value) >= LEAST_SECRET} - is_path
    return tuple(sorted(found, key=len, reverse=True))


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without those secrets, rollouts' tokens in paths, and keys in headers; all else is as it was."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _CARRIERS:
        text = pattern.sub(instead, text)
    return text


def value_without_secrets(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same for every text in a JSON value; numbers are never touched."""
    if isinstance(value, str):
        return without_secrets(value, secrets)
    if isinstance(value, dict):
        return {key: value_without_secrets(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list) and not (value and isinstance(value[0], int | float)):  # token ids are many
        return [value_without_secrets(inner, secrets) for inner in value]
    return value


def logged(text: str) -> str:
    """A text of ours for the log: without this process's secrets and without what has the form of a key."""
    text = without_secrets(text, own_secrets(os.environ))
    for pattern, instead in _KEY_FORMS:
        text = pattern.sub(instead, text)
    return text


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
