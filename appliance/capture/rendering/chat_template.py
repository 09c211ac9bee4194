"""A model's own chat template, compiled in a sandbox with the names that chat templates expect.

Knows jinja2 and nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appliance.errors import ModelError
from appliance.types import Message, Tool


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for others; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as a plain class attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: bool) -> str:
    # jinja2's own tojson escapes HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=options.get("sort_keys", False))


class ChatTemplate:
    """`render(messages, tools, generation)` is the text a stock server would make, special tokens as text."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as e:
            raise ModelError(f"chat template: {e}", "give the model folder a valid chat_template.jinja") from e
        self.source = source
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[object], tools: Sequence[object], generation: bool) -> str:
        """Text of `messages` (as `message_value` makes them); ModelError with the template's own reason."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=generation,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as e:
            raise ModelError(f"chat template refused a conversation: {e}") from e


def message_value(message: Message, escape: Callable[[str], str]) -> dict[str, object]:
    """`message` as templates expect it; `escape` is applied to every text that came from outside."""
    value: dict[str, object] = {"role": message.role, "content": escape(message.content)}
    if message.reasoning:
        value["reasoning_content"] = escape(message.reasoning)
    if message.tool_calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": escape(call.full_name),
                    "arguments": _argument_value(call.arguments, escape),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def tool_value(tool: Tool, escape: Callable[[str], str]) -> dict[str, object]:
    """`tool` as templates expect it."""
    return {
        "type": "function",
        "function": {
            "name": escape(tool.full_name),
            "description": escape(tool.description),
            "parameters": escaped(json.loads(tool.parameters), escape),
        },
    }


def escaped(value: object, escape: Callable[[str], str]) -> object:
    """`value` with `escape` applied to every string in it, keys too."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [escaped(item, escape) for item in value]
    if isinstance(value, dict):
        return {escape(key): escaped(item, escape) for key, item in value.items()}
    return value


def _argument_value(arguments: str, escape: Callable[[str], str]) -> object:
    """An object where the arguments are one (templates print it as JSON), their text where they are malformed."""
    try:
        value = json.loads(arguments)
        return escaped(value, escape) if isinstance(value, dict) else escape(arguments)
    except (ValueError, RecursionError):
        return escape(arguments)
