"""A tokenizer and a conversation for load: made words, about a token each; seeded, so that it can be repeated."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from appliance.config.runconfig import CHECKOUT

_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "ol")]
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAGS = ("<tool_call>", "</tool_call>")
NUM_WORDS = 3000
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


@cache
def words() -> tuple[str, ...]:
    """Made words, each a token of `tokenizer_folder`'s model when a space precedes it."""
    draw = random.Random(0)
    return tuple(sorted({"".join(draw.choices(_SYLLABLES, k=3)) for _ in range(NUM_WORDS)}))


def tokenizer_folder(folder: Path) -> Path:
    """Writes the files of a model folder that rendering reads: byte-level BPE whose merges spell each word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    merges: dict[tuple[str, str], None] = {}
    for word in ("Ġ" + word for word in words()):
        for end in range(2, len(word) + 1):
            merges[word[: end - 1], word[end - 1]] = None
            vocabulary.setdefault(word[:end], len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": _CONTROL[2]}))
    template = CHECKOUT / "data" / "templates" / "hermes.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"))
    return folder


def bodies(seed: int, num_tokens: int) -> Iterator[bytes]:
    """The request bodies of one conversation of about `num_tokens` prompt tokens: each adds an echo and a result."""
    draw = random.Random(seed)
    text = " ".join(draw.choices(words(), k=max(1, num_tokens - 120)))
    messages = [{"role": "system", "content": "You run commands."}, {"role": "user", "content": f"Task {seed}: {text}"}]
    head = json.dumps({"model": "scripted", "tools": [TOOL], "messages": messages})[:-2]
    for turn in itertools.count():
        yield f"{head}]}}".encode()
        function = {"name": "bash", "arguments": '{"command": "ls -a"}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        echo = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": f"call_{turn}", "content": " ".join(draw.choices(words(), k=40))}
        head += f", {json.dumps(echo)}, {json.dumps(result)}"
