"""The fork doctor over a whole run: every rollout's forks with causes, counted by harness, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from appliance.config.runconfig import RunConfig, from_record
from appliance.record.store import Store
from appliance.train.provenance import tree_of
from appliance.trees.forks import REMEDIES, Cause, Decode, Fork, forks
from appliance.types import Run, TokenIds


@dataclass(slots=True)
class Tally:
    """Counts over rollouts: leaves that train (`rows`), forks and tokens read again by cause."""

    rollouts: int = 0
    rows: int = 0
    by_cause: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, rows: int, found: Sequence[Fork]) -> None:
        """Counts one rollout."""
        self.rollouts += 1
        self.rows += rows
        for fork in found:
            self.by_cause[str(fork.cause)] += 1
            self.tokens[str(fork.cause)] += fork.tokens

    def as_json(self) -> dict[str, object]:
        """The promised counts."""
        return {
            "rollouts": self.rollouts,
            "rows": self.rows,
            "rows_per_rollout": self.rows / self.rollouts if self.rollouts else None,
            "unexplained": self.by_cause[Cause.UNKNOWN],
            "by_cause": dict(self.by_cause.most_common()),
        }


@dataclass(slots=True)
class RunForks:
    """What is wrong with a run's trees, and where: `all_forks` as (rollout, harness, fork)."""

    whole: Tally
    by_harness: dict[str, Tally]
    all_forks: list[tuple[int, str, Fork]]

    def as_json(self) -> dict[str, object]:
        """For --json: the counts of the run, and of each harness with the tokens that its forks cost."""
        harnesses = {h: t.as_json() | {"tokens": dict(t.tokens)} for h, t in sorted(self.by_harness.items())}
        return self.whole.as_json() | {"by_harness": harnesses}


def explain(home: Path, store: Store, run_id: str, told: Callable[[int, int], None] | None = None) -> RunForks:
    """Reads every rollout of the run that has token ids; a teacher's have none and no tree."""
    run = store.run(run_id)
    config: RunConfig = from_record(run.config)
    decode = decoder(home, run)
    found = RunForks(Tally(), {}, [])
    rollouts = store.rollouts(run.id)
    for n, rollout in enumerate(rollouts):
        calls, tree = tree_of(store, rollout.id, config.branches)
        if not tree.numbers:
            continue
        own = forks(calls, tree, decode)
        harness = rollout.plan.harness
        for tally in (found.whole, found.by_harness.setdefault(harness, Tally())):
            tally.add(len(tree.rows), own)
        found.all_forks += [(rollout.id, harness, fork) for fork in own]
        if told is not None:
            told(n + 1, len(rollouts))
    return found


def decoder(home: Path, run: Run) -> Decode:
    """Ids to text by the run's own tokenizer, or, for `corral proxy`, that of the folder it was given.

    The ids themselves as text where the folders are gone.
    """
    own = home / "runs" / run.id / "model"
    for folder in (own / "served", own / "base", Path(from_record(run.config).model.path).expanduser()):
        path = folder / "tokenizer.json"
        if path.exists():
            tokenizer = Tokenizer.from_file(str(path))
            size = tokenizer.get_vocab_size(with_added_tokens=True)
            return lambda ids: _in_vocabulary(tokenizer, size, ids)
    return _as_numbers


def _in_vocabulary(tokenizer: Tokenizer, size: int, ids: TokenIds) -> str:
    """Text of `ids`; with an id that is no token of this model, the numbers, so that it is seen."""
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < size):
        return _as_numbers(ids)
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def _as_numbers(ids: TokenIds) -> str:
    return " ".join(map(str, ids.tolist()))


def text(found: RunForks, show_all: bool = False) -> str:
    """For a terminal: counts, then each cause with its cost, its remedy and one example side by side (or all)."""
    whole = found.whole
    if not whole.rollouts:
        return "no rollout of this run has token ids: it has no trees"
    lines = [
        f"{whole.rollouts} rollouts, {whole.rows} rows ({whole.rows / whole.rollouts:.2f} a rollout), "
        f"{sum(whole.by_cause.values())} forks, {whole.by_cause[Cause.UNKNOWN]} unexplained"
    ]
    for harness, tally in sorted(found.by_harness.items()):
        causes = ", ".join(f"{cause} {n} ({tally.tokens[cause]} tokens)" for cause, n in tally.by_cause.most_common())
        lines.append(f"  {harness:<16} {tally.rows / tally.rollouts:.2f} rows a rollout   {causes or 'no forks'}")
    for cause, count in whole.by_cause.most_common():
        lines += ["", f"{cause}: {count} forks, {whole.tokens[cause]} tokens read and stored again"]
        lines.append(f"  what would remove it: {REMEDIES[Cause(cause)]}")
        own = [entry for entry in found.all_forks if entry[2].cause == cause]
        for entry in own if show_all or cause == Cause.UNKNOWN else own[:1]:
            lines += _side_by_side(*entry)
    return "\n".join(lines)


def _side_by_side(rollout: int, harness: str, fork: Fork) -> list[str]:
    """One fork. Quoted, so that control characters of untrusted text stay out of the terminal."""
    head = f"  rollout {rollout} ({harness}) call {fork.call}, compared with call {fork.reference}, token {fork.at}"
    lines = [head] + ([f"    {_safe(line)}" for line in fork.detail.splitlines()])
    return [
        *lines,
        f"    after    {fork.before!a}",
        f"    expected {fork.expected!a}",
        f"    found    {fork.found!a}",
    ]


def _safe(line: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
