"""What only a GPU shows, in at most eight minutes: FlexAttention against the dense mask, tokens a second, peak.

python tests/bench/gpu_check.py [--billions 1] [--seconds 420]

Prints lines for LOG.md. The model is random: speed and memory do not depend on its weights. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from appliance.config.runconfig import resolve  # noqa: E402
from appliance.runs.memory_plan import Shape, trainer_parts  # noqa: E402
from appliance.train.bases import BaseSettings  # noqa: E402
from appliance.train.batch import pack  # noqa: E402
from appliance.train.measuring import Case, batch  # noqa: E402
from appliance.train.policy import Policy, PolicySettings, load_policy  # noqa: E402
from appliance.train.update import UpdateSettings, make_optimizer, update  # noqa: E402

SHAPES = {  # hidden, inner, layers, heads, key/value heads
    1: (2048, 6144, 20, 16, 8),
    4: (2560, 9728, 36, 32, 8),
    8: (4096, 12288, 36, 32, 8),
}
PARITY_SIZE = (512, 1024, 4, 8, 4)


def write_model(folder: Path, shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> Path:
    width, inner, layers, heads, kv_heads = shape
    config = Qwen3Config(
        vocab_size=151_936, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128, max_position_embeddings=131_072,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("cuda"):
        Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


def gradient(policy: Policy, shared: int, own: int) -> torch.Tensor:
    rows = batch(Case("peak", "", shared, 4, own), 151_936)
    (packed,) = pack(rows, 1 << 30)
    policy.model.zero_grad()
    policy.logprobs(packed, 1.0).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def parity(folder: Path) -> None:
    """FlexAttention's gradient against that of the dense mask, in fp32; and that a second size compiles nothing new."""
    base = write_model(folder / "parity", PARITY_SIZE, torch.float32)
    policy = load_policy(base, PolicySettings(BaseSettings("none", "float32"), 16, "cuda"))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    flex = gradient(policy, 700, 90)
    name = policy.attention
    policy.attention = "sdpa"
    policy.model.get_base_model().set_attn_implementation("sdpa")
    dense = gradient(policy, 700, 90)
    differ = float((flex - dense).norm() / dense.norm())
    print(f"- FlexAttention against the dense mask, fp32: gradients differ by {differ:.1e}")
    policy.attention = name
    policy.model.get_base_model().set_attn_implementation(name)
    started = time.perf_counter()
    gradient(policy, 690, 88)
    torch.cuda.synchronize()
    print(f"- another tree of the same padded size: {time.perf_counter() - started:.2f} s, so nothing was compiled")


def speed(folder: Path, billions: int, deadline: float) -> None:
    """Tokens a second and peak memory of packed and flat updates, NF4 and bf16, beside the plan."""
    base = write_model(folder / "speed", SHAPES[billions], torch.bfloat16)
    for quantization in ("nf4", "none"):
        settings = BaseSettings(quantization, "auto", checkpointing=True)  # type: ignore[arg-type]
        policy = load_policy(base, PolicySettings(settings, 16, "cuda"))
        optimizer = make_optimizer(policy, 1e-5)
        rows = batch(Case("peak", "", 6000, 8, 512), 151_936)
        flat = [p for row in rows for p in pack([row], 1 << 30)]
        for name, packs in (("packed", pack(rows, 1 << 30)), ("flat", flat)):
            if time.monotonic() > deadline:
                print(f"- {name} {quantization}: not measured, out of time")
                continue
            update(policy, packs, optimizer, UpdateSettings())  # compiles
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            started = time.perf_counter()
            metrics = update(policy, packs, optimizer, UpdateSettings())
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"- {billions} B {quantization} {name}: {metrics.flat_tokens / seconds:,.0f} flat tokens/s, "
                f"{metrics.unique_tokens / seconds:,.0f} computed tokens/s, peak {peak:.2f} GiB, bound "
                f"{sum(len(r.ids) for r in rows) / 10096:.2f}"
            )
        planned(base, quantization)
        del policy, optimizer
        torch.cuda.empty_cache()


def planned(base: Path, quantization: str) -> None:
    asked = resolve(
        None,
        {
            "engine.device": "cuda", "model.quantization": quantization, "model.lora_rank": "16",
            "train.checkpointing": "true", "train.row_tokens": "10096",
        },
    )  # fmt: skip
    parts = [p for p in trainer_parts(asked, Shape.of(base)) if p.name != "process"]
    print(f"- the plan of it, without the CUDA context: {sum(p.bytes for p in parts) / 2**30:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--billions", type=int, choices=sorted(SHAPES), default=1)
    parser.add_argument("--seconds", type=int, default=420)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU here: nothing to check")
    deadline = time.monotonic() + options.seconds
    print(f"## {time.strftime('%Y-%m-%d')} {torch.cuda.get_device_name()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        parity(Path(folder))
        speed(Path(folder), options.billions, deadline)


if __name__ == "__main__":
    main()
