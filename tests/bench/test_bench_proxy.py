"""The proxy's bench, small: it measures on real sockets, and says null of what cannot be had."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from appliance.bench import proxy
from appliance.bench.load import peers
from appliance.errors import HostError


@pytest.mark.slow
def test_the_bench_measures_what_it_promises_and_a_peer_that_cannot_be_installed_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(peer: peers.Peer, folder: Path) -> None:
        raise HostError(f"{peer.requirement} cannot be installed: no network", "measure without --peers")

    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.setattr(peers, "install", refuse)
    parser = argparse.ArgumentParser()
    proxy.add(parser)
    small = {"--clients": 2, "--tokens": 200, "--calls": 2, "--rollouts": 2, "--rollout-calls": 3}
    words = [str(word) for pair in small.items() for word in pair]
    found, text = proxy.measure(parser.parse_args([*words, "--no-curve", "--peers"]))
    assert (found["litellm"], found["agentlightning"], found["ratio_to_litellm"]) == (None, None, None)
    assert "litellm is left out" in capsys.readouterr().err
    assert (found["lost"], found["doubled"], found["curve"]) == (0, 0, [])
    assert 0 < found["overhead_p50_ms"] <= found["overhead_p99_ms"] and found["calls_per_s"] > 0
    assert "rss_growth_mb" in found and "corral" in text
