"""The cold start: a run's first policy, from the conversations in which its teacher got full reward.

    teacher's conversations from the record → base (the pocket model is grown; any other folder is taken as it is)
    → served: the base's quantised values for the sampler → version 0: an adapter, trained on the same conversations

Killed at any point, it starts again: nothing is in the record before the version is. Determined by the run's seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.capture.rendering.renderer import Renderer
from appliance.config.runconfig import CHECKOUT, RunConfig, from_record
from appliance.config.sections import BranchesSection
from appliance.errors import ModelError, StoreError, TrainingError
from appliance.record.conversation import said
from appliance.record.store import Store
from appliance.system.files import new_folder
from appliance.tasks.generated import tasks_folder
from appliance.tasks.pack import WORDS
from appliance.tasks.task_files import text_in
from appliance.train.bases import check_tokenizer
from appliance.train.batch import Sequence as TrainingRow
from appliance.train.batch import pack
from appliance.train.checkpoints import seal
from appliance.train.lessons import Lesson, renamed, validation_split
from appliance.train.pocket import ROWS_A_STEP, Growth, Row, grow, mean_loss, new_model, save_model
from appliance.train.policy import Policy, load_policy, save_adapter, set_threads, settings_of
from appliance.train.smollm2 import prepare_smollm2
from appliance.train.vocabulary import CONTROL, pocket_tokenizer, save_tokenizer
from appliance.train.weights import export_served
from appliance.trees.recovery import recovered
from appliance.types import Branch, Purpose, Said, TokenIds

TEMPLATE = CHECKOUT / "data" / "templates" / "hermes.jinja"
REPORT_S = 5.0
TEXTS_A_KIND = 32
"""Conversations a kind of lesson that the pocket tokenizer is made from; it looks for what all of them share."""
ADAPTER_ROWS = 8
"""Conversations a step of an adapter's cold start."""


def cold_start(home: Path, store: Store, run_id: str) -> None:
    """Makes `model/base`, `model/served` and `adapters/v0` in the run's folder and records version 0."""
    config = from_record(store.run(run_id).config)
    folder = home / "runs" / run_id
    set_threads(2 if config.engine.resolved_device == "cpu" else 4)
    lessons = read_lessons(store, run_id)
    learner = Learner(store, run_id, config, lessons)
    base = folder / "model" / "base"
    if config.model.path == "pocket":
        learner.grow_pocket(base)
    elif config.model.path == "smollm2":
        _link(base, prepare_smollm2(home / "models" / "smollm2"))
    else:
        _link(base, Path(config.model.path))
    device = config.engine.resolved_device
    settings = settings_of(config)
    export_served(base, settings.base, folder / "model" / "served", device)
    check_tokenizer(base, folder / "model" / "served")
    policy = load_policy(base, settings)
    if config.model.path != "pocket":
        learner.train_adapter(policy, Renderer.from_folder(base))
    path = folder / "adapters" / "v0"
    sha256 = save_adapter(policy, path)
    seal(path)
    store.add_version(run_id, 0, path, sha256)


def read_lessons(store: Store, run_id: str) -> list[Lesson]:
    """The teacher's conversations that got full reward, oldest first; TrainingError if there is none."""
    found: list[Lesson] = []
    taught = store.rollouts(run_id, Purpose.TEACH)
    for rollout in taught:
        if rollout.reward != 1.0:
            continue
        calls = said(store.calls(rollout.id), store.conversations(rollout.id))
        if not calls:
            raise StoreError(f"rollout {rollout.id} was graded but holds no call")
        found += [Lesson(rollout.plan.harness, (*c.messages, c.answer), c.tools) for c in _whole(calls)]
    if not found:
        raise TrainingError(
            f"none of the teacher's {len(taught)} rollouts got full reward, so there is nothing to learn from",
            "see why with `corral status`, or name a better teacher in coldstart.teacher",
        )
    return found


def _whole(calls: Sequence[Said]) -> list[Said]:
    """The calls at the ends of a rollout's conversations: one, or one a branch where the harness forks.

    Side calls such as titles are no lesson; a call that another takes up with the same tools is part of that one's.
    """
    roles = recovered(calls, BranchesSection()).roles
    spoken = [(c.tools, [m.canonical() for m in (*c.messages, c.answer)]) for c in calls]
    found = []
    for i, (tools, own) in enumerate(spoken):
        later = [other for same, other in spoken[i + 1 :] if same == tools]
        is_taken_up = any(other[: len(own)] == own for other in later)
        if not is_taken_up and (roles[i].branch is not Branch.AUXILIARY or i == len(spoken) - 1):
            found.append(calls[i])
    return found


class Learner:
    """Draws renamed lessons, trains on them and reports to the record."""

    def __init__(self, store: Store, run_id: str, config: RunConfig, lessons: Sequence[Lesson]) -> None:
        self._store = store
        self._run_id = run_id
        self._config = config
        self._lessons = list(lessons)
        self._train, self._held = validation_split(lessons, config.seed)
        self._random = random.Random(f"{config.seed}/coldstart")
        self._words = _pool_words(tasks_folder(config.pack_path) / WORDS)
        self._reported_at = time.monotonic()

    def grow_pocket(self, base: Path) -> None:
        """Writes a pocket model, with its own tokenizer, to `base`."""
        template = TEMPLATE.read_text(encoding="utf-8")
        self._say(f"growing the pocket model from {len(self._train)} conversations")
        with new_folder(base) as temporary:
            plain = Renderer(pocket_tokenizer([], self._words).to_str(), template)
            tokenizer = pocket_tokenizer(self._texts(plain), self._words)
            save_tokenizer(tokenizer, template, temporary)
            renderer = Renderer.from_folder(temporary)
            vocabulary = tokenizer.get_vocab()
            model = new_model(len(vocabulary), [vocabulary[w] for w in self._words], self._config.seed)
            growth = Growth(self._config.coldstart.steps, self._config.coldstart.learning_rate)
            grow(model, lambda: self._draw(renderer, ROWS_A_STEP), growth, self._report)
            self._validate(lambda rows: float(mean_loss(model, rows)), renderer)
            save_model(model, vocabulary["<|im_end|>"], temporary)

    def train_adapter(self, policy: Policy, renderer: Renderer) -> None:
        """Trains the adapter on the lessons, on the quantised base itself."""
        settings = self._config.coldstart
        optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        started = time.monotonic()
        self._say(f"training the adapter on {len(self._train)} conversations")
        for step in range(settings.steps):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, (step + 1) / 10) * max(0.05, 1 - step / settings.steps)
            loss = self._adapter_loss(policy, self._draw(renderer, ADAPTER_ROWS), backward=True)
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            elapsed = time.monotonic() - started
            self._report(step + 1, loss, elapsed / (step + 1) * (settings.steps - step - 1))
        self._validate(lambda rows: self._adapter_loss(policy, rows, backward=False), renderer)

    def _adapter_loss(self, policy: Policy, rows: Sequence[Row], backward: bool) -> float:
        """Mean −log p over the rows' trained tokens; with `backward`, its gradient is added up in the adapter."""
        sequences = [
            TrainingRow(ids, mask, np.zeros(len(ids), np.float32), 0.0, i) for i, (ids, mask) in enumerate(rows)
        ]
        packs = pack(sequences, self._config.train.row_tokens)
        total = sum(p.num_terms for p in packs)
        summed = 0.0
        for packed in packs:
            with torch.set_grad_enabled(backward):
                loss = -policy.logprobs(packed, temperature=1.0).sum() / total
            if backward:
                loss.backward()  # type: ignore[no-untyped-call]
            summed += float(loss.detach())
        if not np.isfinite(summed):
            raise TrainingError(f"the cold start's loss is {summed}", "lower coldstart.learning_rate")
        return summed

    def _draw(self, renderer: Renderer, count: int) -> list[Row]:
        """`count` renamed lessons of one kind: alike in length, so little is padded."""
        kind = self._random.choice(sorted({lesson.kind for lesson in self._train}))
        own = [lesson for lesson in self._train if lesson.kind == kind]
        return [self._row(renderer, renamed(self._random.choice(own), self._words, self._random)) for _ in range(count)]

    def _row(self, renderer: Renderer, lesson: Lesson) -> Row:
        return renderer.render_training(lesson.messages, lesson.tools)

    def _texts(self, renderer: Renderer) -> list[list[str]]:
        """Conversations as text by kind, cut where prompt and answer meet: they are never encoded together."""
        texts: list[list[str]] = []
        for kind in sorted({lesson.kind for lesson in self._lessons}):
            own = [lesson for lesson in self._lessons if lesson.kind == kind][:TEXTS_A_KIND]
            texts.append([_cut_text(renderer, *self._row(renderer, lesson)) for lesson in own])
        return texts

    def _validate(self, loss: Callable[[list[Row]], float], renderer: Renderer) -> None:
        if not self._held:
            return
        draw = random.Random(f"{self._config.seed}/validation")
        rows = [self._row(renderer, renamed(lesson, self._words, draw)) for lesson in self._held]
        with torch.no_grad():
            self._say(f"held-out conversations: {loss(rows):.4f} nats a token")

    def _report(self, step: int, loss: float, seconds_left: float) -> None:
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._reported_at = time.monotonic()
            self._say(f"step {step} of {self._config.coldstart.steps}: loss {loss:.4f}, {seconds_left:.0f} s left")

    def _say(self, message: str) -> None:
        self._store.log("info", "coldstart", message, self._run_id)


def _cut_text(renderer: Renderer, ids: TokenIds, mask: NDArray[np.bool_]) -> str:
    turns = np.split(ids, np.flatnonzero(np.diff(mask.astype(np.int8))) + 1)
    return CONTROL[0].join(renderer.decode(turn) for turn in turns)


def _pool_words(path: Path) -> list[str]:
    """The pack's interchangeable words; a pack without words.txt has none, and its lessons are not renamed."""
    return sorted(text_in(path, "the pack's words").split()) if path.exists() else []


def _link(base: Path, model: Path) -> None:
    """`base` names the user's folder without a copy of its weights."""
    if not (model / "config.json").is_file():
        raise ModelError(f"{model}: no model here (config.json is missing)", "name a local Hugging Face model folder")
    base.parent.mkdir(parents=True, exist_ok=True)
    if base.is_symlink():
        base.unlink()
    base.symlink_to(model.resolve(), target_is_directory=True)
