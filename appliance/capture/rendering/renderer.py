"""Messages to tokens and back, by the model's own tokenizer and chat template. No transformers, no torch.

The invariant is *graft*: a turn the model sampled is never encoded again. The next prompt is the recorded
prompt ids, the recorded sampled ids, and the encoded text of only what is new. That text comes from a
minimal conversation [user, assistant(sentinel)] + new messages: what the template puts after the sentinel.

Text from outside cannot become control tokens. Before templating, every added-token string inside contents,
tool schemas and arguments is replaced by an escape (a private-use pair); after templating, the added tokens
that remain were written by the template and become ids, and the escapes are undone inside the pieces between
them, which are encoded by the same tokenizer without its added tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from appliance.capture.rendering.chat_template import ChatTemplate, message_value, tool_value
from appliance.capture.rendering.parsing import parse_answer
from appliance.errors import ModelError
from appliance.types import Message, TokenIds, Tool, ToolCall

_OPEN = "\U0010fff0"  # starts an escape; the next character says which
_BASE = 0xF0000
_ESCAPED_OPEN = _OPEN + chr(_BASE)
_SENTINEL = _OPEN + chr(_BASE + 0xFFF0)  # no text from outside can contain it: its _OPEN would be escaped
_SURROGATE = re.compile("[\ud800-\udfff]")
_USER = Message("user", "x")


class Renderer:
    """One model's rendering. `stop_ids` end a turn: the template's end-of-turn token first."""

    def __init__(
        self,
        tokenizer_json: str,
        template: str,
        special_tokens: dict[str, str] | None = None,
        end_ids: Iterable[int] = (),
    ) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        plain = json.loads(tokenizer_json)
        self._added: dict[str, int] = {t["content"]: t["id"] for t in plain["added_tokens"]}
        self._pattern = _added_pattern(plain["added_tokens"])
        plain |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._plain = Tokenizer.from_str(json.dumps(plain))
        names = sorted(self._added, key=len, reverse=True)
        self._names = names
        self._escapes = {name: _OPEN + chr(_BASE + 1 + i) for i, name in enumerate(names)} | {_OPEN: _ESCAPED_OPEN}
        self._outside = re.compile("|".join(re.escape(name) for name in [_OPEN, *names]))
        self._template = ChatTemplate(template, special_tokens or {})
        self._hermes = "<tool_call>" in template
        self.fingerprint: str = hashlib.sha256(f"{tokenizer_json}\0{template}".encode()).hexdigest()[:16]
        self._tool_values = lru_cache(maxsize=64)(self._tool_values_of)
        self._end_of_turn = self._find_end_of_turn()
        others = sorted(set(end_ids) - {self._end_of_turn})
        self.stop_ids: tuple[int, ...] = (self._end_of_turn, *others)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, path: Path, template: Path | None = None) -> Renderer:
        """From a Hugging Face model folder; `template` replaces the folder's own chat template."""
        try:
            tokenizer_json = (path / "tokenizer.json").read_text(encoding="utf-8")
            config = _read_json(path / "tokenizer_config.json")
            source = template.read_text(encoding="utf-8") if template else _folder_template(path, config)
        except (OSError, ValueError) as e:
            raise ModelError(f"{path}: {e}", "name a folder with tokenizer.json and a chat template") from e
        special = {k: v for k, v in ((k, _token_text(v)) for k, v in config.items() if k.endswith("_token")) if v}
        ends = [_read_json(path / name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
        ids = [i for end in ends for i in (end if isinstance(end, list) else [end]) if isinstance(i, int)]
        return cls(tokenizer_json, source, special, ids)

    # ------------------------------------------------------------------ messages → ids

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool = True) -> TokenIds:
        """Ids of the whole conversation as a stock server would encode it; `generation` opens the next turn."""
        return self.encode(self._text(self._values(messages), tools, generation))

    def graft(
        self, prompt_ids: TokenIds, sampled_ids: TokenIds, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> TokenIds:
        """prompt_ids + sampled_ids, both untouched, + the encoded text of `new_messages` and the next turn's start.

        A sample that ended its turn already holds the end-of-turn token; one cut by length gets it here.
        """
        tail = self._tail(self._values(new_messages), tools, generation=True)
        ended = len(sampled_ids) > 0 and int(sampled_ids[-1]) in self.stop_ids
        suffix = self.encode(tail)
        if ended:
            suffix = suffix[int(np.argmax(suffix == self._end_of_turn)) + 1 :]
        ids: TokenIds = np.concatenate([prompt_ids, sampled_ids, suffix]).astype(np.int32)
        return ids

    def render_training(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[TokenIds, NDArray[np.bool_]]:
        """(ids, mask) of a conversation, both (T,), exactly as the proxy would have fed and grafted it.

        mask is true on what the policy samples: assistant turns with their end-of-turn token. What follows
        the last assistant turn is left out.
        """
        ids = np.zeros(0, np.int32)
        mask = np.zeros(0, np.bool_)
        last = np.zeros(0, np.int32)
        start = 0
        for i, message in enumerate(messages):
            if message.role != "assistant":
                continue
            new = messages[start:i]
            prompt = self.graft(ids[: len(ids) - len(last)], last, new, tools) if start else self.render(new, tools)
            last = self.turn(message, tools)
            mask = np.concatenate([mask, np.zeros(len(prompt) - len(ids), np.bool_), np.ones(len(last), np.bool_)])
            ids = np.concatenate([prompt, last])
            start = i + 1
        return ids, mask

    def turn(self, message: Message, tools: Sequence[Tool]) -> TokenIds:
        """Ids the policy would sample to say `message`: its turn after the generation prompt, with the end."""
        user = self._values([_USER])
        opened = self._text(user, tools, generation=True)
        whole = self._text(user + self._values([message]), tools, generation=False)
        if not whole.startswith(opened):
            raise ModelError(
                "chat template: the generation prompt is not how it starts an assistant turn",
                "use data/templates/hermes.jinja as the model's chat template",
            )
        ids = self.encode(whole[len(opened) :])
        ends = np.flatnonzero(ids == self._end_of_turn)
        if not len(ends):
            raise ModelError("chat template: an assistant turn has no end-of-turn token")
        turn: TokenIds = ids[: int(ends[-1]) + 1]
        return turn

    # ------------------------------------------------------------------ ids → message

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of the added tokens."""
        return frozenset(self._added.values())

    def id_of(self, token: str) -> int | None:
        """The id of a token by its text, None when the vocabulary has none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def decode(self, ids: TokenIds) -> str:
        """Text of `ids`, control tokens included."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def parse(self, sampled_ids: TokenIds, tools: Sequence[Tool]) -> Message:
        """The assistant message that `sampled_ids` say."""
        ended = len(sampled_ids) > 0 and int(sampled_ids[-1]) in self.stop_ids
        text = self.decode(sampled_ids[:-1] if ended else sampled_ids)
        return parse_answer(text, tools, self._hermes)

    # ------------------------------------------------------------------ text → ids

    def encode(self, text: str) -> TokenIds:
        """Ids of templated text: added tokens as written by the template, escapes undone between them."""
        ids: list[int] = []
        at = 0
        for match in self._pattern.finditer(text):
            ids += self._encode_plain(text[at : match.start()])
            ids.append(self._added[match[0]] if match[0] in self._added else self._added[match[0].strip()])
            at = match.end()
        ids += self._encode_plain(text[at:])
        return np.asarray(ids, np.int32)

    def _encode_plain(self, piece: str) -> list[int]:
        if not piece:
            return []
        text = _SURROGATE.sub("\ufffd", self._unescape(piece))
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _escape(self, text: str) -> str:
        return self._outside.sub(lambda match: self._escapes[match[0]], text)

    def _unescape(self, text: str) -> str:
        if _OPEN not in text:
            return text

        def original(match: re.Match[str]) -> str:
            index = ord(match[1]) - _BASE
            return self._names[index - 1] if index else _OPEN

        return re.sub(f"{_OPEN}(.)", original, text, flags=re.DOTALL)

    # ------------------------------------------------------------------ templating

    def _values(self, messages: Sequence[Message]) -> list[dict[str, object]]:
        return [message_value(message, self._escape) for message in messages]

    def _tool_values_of(self, tools: tuple[Tool, ...]) -> list[dict[str, object]]:
        return [tool_value(tool, self._escape) for tool in tools]

    def _text(self, values: Sequence[dict[str, object]], tools: Sequence[Tool], generation: bool) -> str:
        return self._template.render(values, self._tool_values(tuple(tools)), generation)

    def _tail(
        self,
        new: Sequence[dict[str, object]],
        tools: Sequence[Tool],
        generation: bool,
        history: Sequence[Message] = (_USER,),
    ) -> str:
        """What the template writes after the content of an assistant turn followed by `new`."""
        sentinel: dict[str, object] = {"role": "assistant", "content": _SENTINEL}
        text = self._text([*self._values(history), sentinel, *new], tools, generation)
        _, found, tail = text.partition(_SENTINEL)
        if not found:
            raise ModelError(
                "chat template drops or rewrites the content of an assistant turn, so it cannot be grafted",
                "use data/templates/hermes.jinja as the model's chat template",
            )
        return tail

    def _find_end_of_turn(self) -> int:
        match = self._pattern.search(self._tail([], (), generation=False))
        if match is None:
            raise ModelError("chat template ends an assistant turn without a control token", "it cannot be grafted")
        return self._added[match[0] if match[0] in self._added else match[0].strip()]

    # ------------------------------------------------------------------ proof

    def check_graft(self) -> None:
        """Prove on a three-turn tool conversation that what follows a turn does not depend on what precedes it,
        that tools, calls and results reach the model, and that a call parses back; ModelError says what does not.
        """
        tool = Tool("probe_tool", "Probe.", '{"type": "object", "properties": {"command": {"type": "string"}}}')
        history = probe_conversation()
        head = self.decode(self.render(history[:2], [tool]))
        _prove("probe_tool" in head, "does not show the offered tools to the model")
        for i in (2, 4):
            turn = self.turn(history[i], [tool])
            said = self.parse(turn, [tool])
            _prove(said.canonical() == history[i].canonical(), "writes tool calls that do not parse back")
            _prove(history[i].content in self.decode(turn), "drops the text beside a tool call")
            new = self._values(history[i + 1 : i + 2])
            short = self._tail(new, [tool], generation=True)
            full = self._tail(new, [tool], generation=True, history=history[:i])
            _prove(short == full, "writes a new turn differently depending on earlier turns")
            _prove(history[i + 1].content in short, "drops tool results")
        ids, mask = self.render_training(history, [tool])
        _prove(int(ids[-1]) == self._end_of_turn and bool(mask[-1]), "does not end an assistant turn")
        for name in self._names:
            hidden = self.encode(self._escape(name))
            _prove(self._added[name] not in hidden, f"cannot tell the text {name!r} from the control token")


def probe_conversation() -> list[Message]:
    """Three assistant turns with two tool calls between them, on which grafting is proven."""
    first = ToolCall("call_0", "probe_tool", '{"command": "grep -rh one=1 | head"}')
    second = ToolCall("call_1", "probe_tool", '{"command": "cat two"}')
    return [
        Message("system", "System text."),
        Message("user", "Do two things."),
        Message("assistant", "First step.", tool_calls=(first,)),
        Message("tool", "result one", tool_call_id="call_0"),
        Message("assistant", "Second step.", tool_calls=(second,)),
        Message("tool", "result two", tool_call_id="call_1"),
        Message("assistant", "Both done."),
    ]


def _prove(claim: bool, otherwise: str) -> None:
    if not claim:
        raise ModelError(
            f"the model's chat template {otherwise}; it cannot be grafted",
            "use data/templates/hermes.jinja as the model's chat template",
        )


def _added_pattern(tokens: Sequence[dict[str, object]]) -> re.Pattern[str]:
    """Any added token, longest first, with the white space that its lstrip/rstrip flags swallow."""
    ordered = sorted(tokens, key=lambda t: len(str(t["content"])), reverse=True)
    parts = [
        (r"\s*" if t.get("lstrip") else "") + re.escape(str(t["content"])) + (r"\s*" if t.get("rstrip") else "")
        for t in ordered
    ]
    if not parts:
        raise ModelError("tokenizer has no control tokens", "name a chat model's folder")
    return re.compile("|".join(parts))


def _read_json(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def _folder_template(path: Path, config: dict[str, object]) -> str:
    if (path / "chat_template.jinja").exists():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    source = _read_json(path / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(source, list):  # several named templates: the one for tools, else the default
        named = {t["name"]: t["template"] for t in source if isinstance(t, dict)}
        source = named.get("tool_use") or named.get("default")
    if not isinstance(source, str):
        raise ValueError("no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)")
    return source


def _token_text(value: object) -> str:
    """A special token's text: tokenizer_config.json has it plain or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
