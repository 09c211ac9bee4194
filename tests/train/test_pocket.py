"""The pocket model: its tokenizer, its start, and that it learns to copy words it was not shown."""

from __future__ import annotations

import random

import pytest
import torch

from appliance.capture.rendering.renderer import Renderer
from appliance.train.coldstart import TEMPLATE
from appliance.train.lessons import Lesson, renamed, validation_split
from appliance.train.pocket import HEADS, Growth, grow, mean_loss, new_model
from appliance.train.vocabulary import phrases, pocket_tokenizer
from tests.support.taught_record import PACK, conversation, pack_conversation, tools

WORDS = sorted((PACK / "words.txt").read_text().split())
HOME = "system\nYou are a shell."


def texts() -> list[list[str]]:
    plain = Renderer(pocket_tokenizer([], WORDS).to_str(), TEMPLATE.read_text())
    tasks = sorted(PACK.glob("*-train-*"))[::8]
    return [
        [plain.decode(plain.render_training(pack_conversation(h, t), tools(h))[0]) for t in tasks]
        for h in ("pi", "codex")
    ]


def test_a_pool_word_is_one_token_in_every_context() -> None:
    tokenizer = pocket_tokenizer(texts(), WORDS)
    for context in ("{}", " {}.txt", "/^{}=", "${{f%.{}}}", "\n{}\n", '"{}"'):
        for word in ("salt", "north"):
            assert word in tokenizer.encode(context.format(word)).tokens


def test_what_every_conversation_repeats_is_a_few_tokens() -> None:
    tokenizer = pocket_tokenizer(texts(), WORDS)
    renderer = Renderer(tokenizer.to_str(), TEMPLATE.read_text())
    ids, mask = renderer.render_training(pack_conversation("codex", PACK / "join-train-00"), tools("codex"))
    assert len(renderer.decode(ids)) > 500
    assert len(ids) < 100
    assert mask.sum() < 35


def test_any_text_comes_back_as_it_was() -> None:
    tokenizer = pocket_tokenizer(texts(), WORDS)
    for text in ("salt=north\n", "Ünïcödé ✓ \t\r\n  x", "<|im_end|> forged", "sałt", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_rendering_with_the_pocket_tokenizer_can_be_grafted() -> None:
    Renderer(pocket_tokenizer(texts(), WORDS).to_str(), TEMPLATE.read_text()).check_graft()


def test_phrases_hold_no_pool_word_and_no_digit() -> None:
    same = f"<|im_start|>{HOME} Copy salt to the file on 2026-11-29 at noon today.<|im_end|>"
    found = phrases([same + "one", same + "two"], frozenset({"salt"}))
    assert found == {f"{HOME} Copy ", " to the file on ", " at noon today."}


def test_the_same_texts_give_the_same_tokenizer() -> None:
    assert pocket_tokenizer(texts(), WORDS).to_str() == pocket_tokenizer(texts(), reversed(WORDS)).to_str()


def test_a_renaming_is_consistent_and_leaves_the_system_turn_alone() -> None:
    before = conversation("pi", "Find the value of salt under north.", ["grep -rh ^salt= north"], ["salt=north\n"])
    after = renamed(Lesson("pi", before, tools("pi")), ["salt", "north", "wool"], random.Random(1)).messages
    user, call, result = after[1].content, after[2].tool_calls[0].arguments, after[3].content
    a, b = user.split()[4], user.split()[6].rstrip(".")
    assert {a, b} <= {"salt", "north", "wool"}
    assert call == f'{{"command": "grep -rh ^{a}= {b}"}}'
    assert result == f"{a}={b}\n"
    assert after[0].content.startswith("You are a coding agent. Use bash.\nCurrent date: 20")


def test_validation_takes_some_lessons_of_each_harness() -> None:
    lessons = [Lesson(h, conversation(h, str(i), [], []), ()) for h in ("pi", "codex") for i in range(20)]
    train, held = validation_split(lessons, seed=0)
    assert [lesson.harness for lesson in held] == ["codex"] * 2 + ["pi"] * 2
    assert len(train) == 36 and not {id(x) for x in train} & {id(x) for x in held}


def test_the_first_layer_looks_back_by_one_two_three_tokens() -> None:
    model = new_model(256, range(100, 200), seed=0)
    model.set_attn_implementation("eager")
    ids = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention = model(ids, output_attentions=True).attentions[0][0]  # (H, T, T)
    for head in range(HEADS):
        assert int(attention[head, 30].argmax()) == 29 - head


def test_growing_is_determined_by_its_seed() -> None:
    rows = [(torch.arange(20, dtype=torch.int32).numpy() + i, torch.arange(20).numpy() > 9) for i in range(4)]

    def grown(seed: int) -> float:
        model = new_model(64, range(30, 40), seed)
        grow(model, lambda: rows, Growth(steps=3, learning_rate=1e-3), lambda *_: None)
        return float(mean_loss(model, rows).detach())

    assert grown(0) == grown(0) != grown(1)


@pytest.mark.slow
def test_it_learns_to_copy_words_it_was_not_shown() -> None:
    tokenizer = pocket_tokenizer(texts(), WORDS)
    renderer = Renderer(tokenizer.to_str(), TEMPLATE.read_text())
    lessons = [Lesson("pi", pack_conversation("pi", t), tools("pi")) for t in sorted(PACK.glob("*-train-0[0-7]"))]
    draw = random.Random(0)

    def rows(count: int) -> list:
        drawn = [renamed(draw.choice(lessons), WORDS, draw) for _ in range(count)]
        return [renderer.render_training(x.messages, x.tools) for x in drawn]

    vocabulary = tokenizer.get_vocab()
    model = new_model(len(vocabulary), [vocabulary[w] for w in WORDS], seed=0)
    grow(model, lambda: rows(24), Growth(steps=100, learning_rate=1e-3), lambda *_: None)
    with torch.no_grad():
        assert float(mean_loss(model, rows(48))) < 0.01
