"""Two gloo ranks are one (E9); what they are dealt is whole rollouts and about equal work; a dead one is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.train.batch import Sequence, deal, pack
from appliance.train.update import Metrics
from tests.support.tiny_policy import forest, make_base, row

HERE = Path(__file__).parent


def torchrun(base: Path, out: Path, how: str, ranks: int) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [sys.executable, "-m", *launcher, str(HERE / "ranks_worker.py"), str(base), str(out), how],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_I7_two_ranks_have_the_gradients_of_one(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    found: list[tuple[torch.Tensor, Metrics]] = []
    for ranks in (1, 2):
        ended = torchrun(base, tmp_path / f"out{ranks}", "learns", ranks)
        assert ended.returncode == 0, ended.stderr[-2000:]
        for rank in range(ranks):
            found.append(torch.load(tmp_path / f"out{ranks}" / f"rank{rank}.pt", weights_only=False))
    (one, said), (first, told), (second, _) = found
    assert one.shape[0] == 3  # one update, then one of each of two minibatches
    assert float((first - one).norm() / one.norm()) < 1e-6
    assert torch.equal(first, second)
    assert told.loss == pytest.approx(said.loss, rel=1e-5)
    assert (told.num_terms, told.grad_norm) == (said.num_terms, pytest.approx(said.grad_norm, rel=1e-5))


@pytest.mark.slow
def test_E9_two_ranks_have_the_gradients_of_one_with_a_critic_too(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    found = []
    for ranks in (1, 2):
        ended = torchrun(base, tmp_path / f"out{ranks}", "critic", ranks)
        assert ended.returncode == 0, ended.stderr[-2000:]
        found += [torch.load(tmp_path / f"out{ranks}" / f"rank{r}.pt", weights_only=False)[0] for r in range(ranks)]
    one, first, second = found
    assert one.shape[0] == 7  # as above, then two minibatches of the policy and two of the critic
    for mine, alone in zip(first, one, strict=True):
        assert float((mine - alone).norm() / alone.norm()) < 1e-5  # its targets are fp32 values of other packs
    assert torch.equal(first, second)


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others_and_is_named(tmp_path: Path) -> None:
    from appliance.train.child import ROOT_CAUSE

    ended = torchrun(make_base(tmp_path / "base"), tmp_path / "out", "dies", 2)
    assert ended.returncode != 0
    named = ROOT_CAUSE.search(ended.stdout + ended.stderr)
    assert named is not None and (named["rank"], named["code"]) == ("1", "-9")
    assert not list((tmp_path / "out").iterdir())


def tokens_of(share: list[Sequence]) -> int:
    return sum(p.num_tokens for p in pack(share, 10**6))


def test_equal_groups_are_dealt_evenly_and_stay_together() -> None:
    shares = deal(forest(), 2)
    assert [sorted({s.rollout for s in share}) for share in shares] in ([[0, 1, 2], [3, 4, 5]], [[3, 4, 5], [0, 1, 2]])
    a, b = map(tokens_of, shares)
    assert abs(a - b) <= 6


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(2, 4), min_size=2, max_size=9)), max_size=12),
    st.integers(1, 4),
)
def test_nothing_is_lost_doubled_or_split_between_ranks(drawn: list[tuple[int, list[int]]], count: int) -> None:
    sequences = [row(ids, range(1, len(ids)), 1.0, rollout, n) for n, (rollout, ids) in enumerate(drawn)]
    shares = deal(sequences, count)
    assert len(shares) == count
    assert Counter(id(s) for share in shares for s in share) == Counter(map(id, sequences))
    homes = [{s.rollout for s in share} for share in shares]
    assert sum(map(len, homes)) == len(set().union(*homes))
