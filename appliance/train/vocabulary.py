"""The pocket model's own tokenizer, made from the conversations it will learn from.

Every word of the task pool is one token in every context, and so is every other run of letters that the
conversations hold; digits, spaces and punctuation stand alone; anything else falls back to letters and bytes. What
every conversation of a harness repeats (system prompt, tool list, the frame of a tool call) becomes single *phrase*
tokens, so that a constant prompt of thousands of characters costs tens of tokens. Phrases hold no digit and no pool
word. They are ordinary vocabulary, not control tokens: text from outside may contain them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from appliance.system.files import new_file

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
UNIT = re.compile(r"[A-Za-z]+|.", re.DOTALL)
_CONTROL = re.compile("|".join(map(re.escape, CONTROL)))
MIN_UNITS = 3
"""Units a phrase must save to be worth a token of its own."""


def pocket_tokenizer(texts: Sequence[Sequence[str]], words: Iterable[str]) -> Tokenizer:
    """Tokenizer from `texts`, the rendered conversations of each harness, and the pool `words`.

    No phrase crosses a control token; a caller sets one where text is never encoded in one piece. The same texts in
    the same order give the same tokenizer.
    """
    words = sorted(set(words))
    found = sorted({p for own in texts for p in phrases(own, frozenset(words))}, key=lambda p: (-len(p), p))
    splitter = Regex("|".join([*map(_bounded, found), UNIT.pattern.replace(".", r"[\s\S]")]))
    rest: Counter[str] = Counter()
    for text in (t for own in texts for t in own):
        for piece in _CONTROL.split(text):
            rest.update(unit for unit in re.split("|".join(map(_bounded, found)) or "(?!)", piece) if unit)
    letters = sorted({unit for text in rest for unit in UNIT.findall(text) if unit.isascii() and len(unit) > 1})
    characters = [chr(c) for c in (9, 10, *range(32, 127))]
    plain = dict.fromkeys([*CONTROL, *characters, *words, *letters, *found, *(f"<0x{b:02X}>" for b in range(256))])
    vocabulary = {token: i for i, token in enumerate(plain)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(splitter, "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in CONTROL[:3]])
    tokenizer.add_tokens([AddedToken(c, special=False, normalized=False) for c in CONTROL[3:]])
    return tokenizer


def phrases(texts: Sequence[str], words: frozenset[str]) -> set[str]:
    """Longest runs of units that occur in every one of `texts`, between control tokens, digits and pool words."""
    if len(texts) < 2:
        return set()
    documents = ["\0".join(["", *_units(text), ""]) for text in texts]
    counts = Counter(pair for text in texts for pair in set(_pairs(text)))
    found: set[str] = set()
    for run in set(_runs(texts[0], words, counts, len(texts))):
        found.update(_common(run, documents))
    return found


def save_tokenizer(tokenizer: Tokenizer, template: str, folder: Path) -> None:
    """Writes tokenizer and chat template into `folder`, as Hugging Face models have them."""
    with new_file(folder / "tokenizer.json") as path:
        path.write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    with new_file(folder / "tokenizer_config.json") as path:
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    with new_file(folder / "chat_template.jinja") as path:
        path.write_text(template, encoding="utf-8")


def _bounded(phrase: str) -> str:
    """Pattern of `phrase` where it does not cut a run of letters."""
    before = "(?<![A-Za-z])" if phrase[0].isalpha() else ""
    after = "(?![A-Za-z])" if phrase[-1].isalpha() else ""
    return before + re.escape(phrase) + after


def _units(text: str) -> list[str]:
    units: list[str] = []
    for i, piece in enumerate(_CONTROL.split(text)):
        units += ["", *UNIT.findall(piece)] if i else UNIT.findall(piece)
    return units


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    return itertools.pairwise(_units(text))


def _runs(text: str, words: frozenset[str], counts: Counter[tuple[str, str]], total: int) -> Iterator[tuple[str, ...]]:
    """Runs of `text` whose every neighbouring pair is in all texts."""
    run: list[str] = []
    for unit in [*_units(text), ""]:
        fixed = not unit or unit in words or not unit.isascii() or unit.isdigit()
        if run and (fixed or counts[run[-1], unit] < total):
            yield tuple(run)
            run = []
        if not fixed:
            run.append(unit)


def _common(run: tuple[str, ...], documents: Sequence[str]) -> list[str]:
    """`run` if every document holds it, else what its halves give."""
    if len(run) < MIN_UNITS:
        return []
    if all("\0".join(["", *run, ""]) in document for document in documents):
        return ["".join(run)]
    middle = len(run) // 2
    return _common(run[:middle], documents) + _common(run[middle:], documents)
