"""A tiny byte-level BPE tokenizer with chat control tokens, and a chat template in the manner of Qwen3."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from appliance.capture.rendering.renderer import Renderer

HERMES = Path(__file__).parents[2] / "data" / "templates" / "hermes.jinja"

QWEN_STYLE = """
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- 'Functions are within <tools></tools>:\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\nCall one as <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seeking=true) %}
{%- for message in messages[::-1] %}
{%- if ns.seeking and message.role == 'user' and not message.content.startswith('<tool_response>') %}
{%- set ns.seeking = false %}{%- set ns.last = messages|length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or message.reasoning_content) %}
{{- '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}
{%- endif %}
{% generation %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{% endgeneration %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

# A template as SmolLM2 has it: a default system turn, no tools.
PLAIN_STYLE = """
{%- for message in messages %}
{%- if loop.first and message.role != 'system' %}{{- '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

_CORPUS = ["echo word > answer.txt", "grep -rh key= folder", '{"name": "bash", "arguments": {"command": "ls"}}'] * 4
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PLAIN_ADDED = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>")


@cache
def tokenizer_json() -> str:
    """About 300 tokens; control tokens are special, tool and think tags are added but not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _PLAIN_ADDED])
    return tokenizer.to_str()


def model_folder(folder: Path, template: str) -> Path:
    """The files of a Hugging Face model folder that rendering reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    stop = Tokenizer.from_str(tokenizer_json()).token_to_id("<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
    return folder


@cache
def renderer(template: str = "") -> Renderer:
    """A renderer over the tiny tokenizer; by default with Corral's own template."""
    return Renderer(tokenizer_json(), template or HERMES.read_text())
