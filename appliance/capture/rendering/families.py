"""Rendering by the `renderers` package, for model families that it knows by hand. Torch and transformers stay out.

The package chooses a family by the exact name of a hub and, for a path, falls back without a word to a renderer that
cannot graft. So a family is never guessed from a path here: `auto` takes the model type in config.json as a proposal
and keeps it only if it renders three probe conversations exactly as the model's own template does; a family that was
named must prove that it grafts. Escaping of outside text is `renderer`'s: the package only sees a tokenizer of ours.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.capture.rendering.chat_template import tool_value
from appliance.capture.rendering.renderer import Renderer, probe_conversation
from appliance.config.paths import CHECKOUT
from appliance.errors import ModelError
from appliance.types import Message, TokenIds, Tool, ToolCall

# Model types of config.json, and the family that may render them.
FAMILIES = {
    "deepseek_v3": "deepseek-v3",
    "glm4_moe": "glm-4.5",
    "gpt_oss": "gpt-oss",
    "kimi_k2": "kimi-k2",
    "llama": "llama-3",
    "minimax_m2": "minimax-m2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
}
_CANNOT_GRAFT = ("auto", "default", "custom")
_TAIL = 256
"""Ids of the prompt that a bridge is shown: it looks at the end only, and the whole would be copied thrice."""
_TOOL = Tool("probe_tool", "Probe.", '{"type": "object", "properties": {"command": {"type": "string"}}}')


def renderer_of(folder: Path, choice: str = "auto") -> Renderer:
    """The renderer of a model folder, proven to graft; ModelError says what does not hold.

    `choice`: `auto`, `template` for the model's own chat template, a family's name, or a hub's exact model name.
    """
    own = Renderer.from_folder(folder)
    if choice != "template":
        proposed = _proposed(folder) if choice == "auto" else _named(choice)
        if proposed is not None:
            try:
                found = FamilyRenderer.from_renderer(own, proposed)
                found.check_graft()
                if choice != "auto" or found.agrees():
                    return found
            except ModelError:
                if choice != "auto":
                    raise
    own.check_graft()
    return own


def _proposed(folder: Path) -> str | None:
    """The family that config.json's model type suggests; none for Corral's own template, which no family renders."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    template = folder / "chat_template.jinja"
    ours = CHECKOUT / "data" / "templates" / "hermes.jinja"
    if template.exists() and ours.exists() and template.read_bytes() == ours.read_bytes():
        return None
    return FAMILIES.get(str(config.get("model_type"))) if isinstance(config, dict) else None


def _named(choice: str) -> str:
    base = importlib.import_module("renderers.base")
    name = str(base.MODEL_RENDERER_MAP.get(choice, choice))
    base._populate_registry()
    known = sorted(set(base.RENDERER_REGISTRY) - set(_CANNOT_GRAFT))
    if name not in known:
        raise ModelError(
            f"model.renderer: {choice!r} is no family that can graft",
            f"a path tells no family; name one of {', '.join(known)}, or `template`",
        )
    return name


class FamilyRenderer(Renderer):
    """As `Renderer`, but the family's own code writes turns, bridges them and parses answers."""

    family: str
    _family: Any

    @classmethod
    def from_renderer(cls, own: Renderer, family: str) -> FamilyRenderer:
        """The family's renderer over the tokenizer of `own`."""
        renderers = importlib.import_module("renderers")
        self = cls.__new__(cls)
        self.__dict__.update(own.__dict__)
        config = renderers.config_from_name(family)
        if "thinking_retention" in type(config).model_fields:
            # What was sampled stays: a bridge must not drop the thinking of earlier turns.
            config = config.model_copy(update={"thinking_retention": "all"})
        self.family = family
        try:
            self._family = renderers.create_renderer(_Tokenizer(own), config)
        except (AssertionError, AttributeError, ValueError, TypeError, LookupError, ImportError) as e:
            raise ModelError(
                f"the tokenizer is not one of family {family!r}: {e}", "set model.renderer=template"
            ) from e
        return self

    def render(self, messages: Sequence[Message], tools: Sequence[Tool], generation: bool = True) -> TokenIds:
        """Ids of the whole conversation as the family's own code writes it."""
        ids = self._asked(
            "render_ids", self._values(messages), tools=self._specs(tools), add_generation_prompt=generation
        )
        return np.asarray(ids, np.int32)

    def graft(
        self, prompt_ids: TokenIds, sampled_ids: TokenIds, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> TokenIds:
        """prompt_ids + sampled_ids, both untouched, + the family's bridge to the next turn."""
        before, said = prompt_ids[-_TAIL:].tolist(), sampled_ids.tolist()
        values = self._values(new_messages)
        bridged = self._asked("bridge_to_next_turn", before, said, values, tools=self._specs(tools))
        known = [*before, *said]
        if bridged is None or list(bridged.token_ids[: len(known)]) != known:
            return super().graft(prompt_ids, sampled_ids, new_messages, tools)
        suffix = np.asarray(bridged.token_ids[len(known) :], np.int32)
        ids: TokenIds = np.concatenate([prompt_ids, sampled_ids, suffix]).astype(np.int32)
        return ids

    def parse(self, sampled_ids: TokenIds, tools: Sequence[Tool]) -> Message:
        """The assistant message that `sampled_ids` say; what is not a whole call stays content."""
        parsed = self._asked("parse_response", sampled_ids.tolist(), tools=self._specs(tools))
        calls: list[ToolCall] = []
        broken: list[str] = []
        for found in parsed.tool_calls:
            call = self._call(found, tools, len(calls)) if str(found.status) == "ok" else None
            if call is None:
                broken.append(found.raw)
            else:
                calls.append(call)
        content = "\n".join([part for part in (parsed.content or "", *broken) if part])
        return Message("assistant", content, parsed.reasoning_content or "", tuple(calls))

    def _call(self, found: Any, tools: Sequence[Tool], index: int) -> ToolCall | None:
        if not found.name:
            return None
        arguments = found.arguments if found.arguments is not None else {}
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        tool = next((t for t in tools if found.name in (t.full_name, t.name)), None)
        name, space = (tool.name, tool.namespace) if tool is not None else (found.name, "")
        return ToolCall(f"call_{index}", name, text, space)

    def agrees(self) -> bool:
        """Whether the family writes the probe conversations exactly as the model's own template does."""
        history = probe_conversation()
        try:
            return all(
                np.array_equal(self.render(history[:n], tools), super(FamilyRenderer, self).render(history[:n], tools))
                for n in (2, 4, 6)
                for tools in ([_TOOL], [])
            )
        except ModelError:
            return False

    def check_graft(self) -> None:
        """Prove on the three-turn tool conversation that the family's bridge keeps every id and shows what is new."""
        history = probe_conversation()
        fed = self.render(history[:2], [_TOOL])
        for i in (2, 4):
            said = self._said(history, i)
            self._prove(self.parse(said, [_TOOL]).canonical() == history[i].canonical(), "does not parse its own calls")
            grafted = self.graft(fed, said, history[i + 1 : i + 2], [_TOOL])
            kept = len(fed) + len(said)
            self._prove(np.array_equal(grafted[:kept], np.concatenate([fed, said])), "rewrites what was sampled")
            shown = self.decode(grafted[kept:])
            self._prove(history[i + 1].content in shown, "drops tool results")
            fed = grafted
        clean = self.render([Message("user", "x")], []).tolist()
        for name, token in self._added.items():
            tainted = self.render([Message("user", name)], []).tolist()
            self._prove(tainted.count(token) == clean.count(token), f"takes the text {name!r} for the control token")

    def _said(self, history: Sequence[Message], i: int) -> TokenIds:
        """Ids the policy would sample for turn `i`: what it adds to the prompt, up to its end."""
        opened = self.render(history[:i], [_TOOL])
        whole = self.render(history[: i + 1], [_TOOL], generation=False)
        shared = int(np.argmin(np.append(opened[: len(whole)] == whole[: len(opened)], False)))
        self._prove(shared == len(opened), "opens a turn otherwise than it writes one")
        ends = np.flatnonzero(np.isin(whole[shared:], self._family.get_stop_token_ids()))
        self._prove(len(ends) > 0, "does not end an assistant turn")
        return whole[shared : shared + int(ends[-1]) + 1]

    def _prove(self, claim: bool, otherwise: str) -> None:
        if not claim:
            raise ModelError(
                f"family {self.family!r} on this model {otherwise}; it cannot be grafted", "set model.renderer=template"
            )

    def _specs(self, tools: Sequence[Tool]) -> list[dict[str, object]] | None:
        return [tool_value(tool, self._escape) for tool in tools] or None

    def _asked(self, what: str, *arguments: object, **options: object) -> Any:
        """The family's answer; whatever its code raises over a conversation is a ModelError with its words."""
        try:
            return getattr(self._family, what)(*arguments, **options)
        except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as e:
            raise ModelError(f"family {self.family!r} refused a conversation: {type(e).__name__}: {e}") from e


class _Tokenizer:
    """What the package asks of a tokenizer, over ours: text from outside comes escaped and cannot become control."""

    def __init__(self, own: Renderer) -> None:
        self._own = own
        self.name_or_path = "corral"
        self.unk_token_id = None
        self.eos_token_id = own.stop_ids[0]
        self.pad_token_id = own.stop_ids[-1]

    def encode(self, text: str, *rest: object, **options: object) -> list[int]:
        """Ids of `text`, as the templates' text is encoded."""
        return [int(i) for i in self._own.encode(text)]

    def decode(self, ids: Any, *rest: object, **options: object) -> str:
        """Text of `ids`, control tokens included unless skipped by option."""
        kept = [int(i) for i in (ids if isinstance(ids, Sequence) else [ids])]
        if options.get("skip_special_tokens"):
            kept = [i for i in kept if i not in self._own.control_ids]
        return self._own.decode(np.asarray(kept, np.int32))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token, or those of several; None for one that is not there."""
        if isinstance(tokens, str):
            return self._own.id_of(tokens)
        return [self._own.id_of(token) for token in tokens]
