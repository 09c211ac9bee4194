"""LoRA on the CPU in vLLM as one matrix product an adapter, loaded by vLLM through an entry point.

vLLM's own CPU kernels copy both LoRA matrices once for every token, which halves throughput and
worse; and they give rows without an adapter (index -1) the weights of the last adapter slot, which
is wrong when both kinds are in one batch. Here rows are gathered by adapter, and rows without one
are left alone.

Shapes: T tokens, I inputs, O outputs of a slice, r rank, N adapter slots.
    x (T, I) · a (N, 1, r, I) · b (N, 1, O, r) · y (T, sum of O)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Rows = list[tuple[int, "torch.Tensor | None"]]


def register() -> None:
    """Entry point of `vllm.general_plugins`; does nothing unless vLLM runs on the CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    patched: Any = PunicaWrapperCPU
    patched.rows_by_adapter = []
    patched.update_metadata = _noting_rows(PunicaWrapperCPU.update_metadata)
    patched.add_lora_linear = add_lora_linear


def _noting_rows(update: Any) -> Any:
    """`update_metadata` that also notes, once a batch and not once a layer, which rows have which adapter."""

    def update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        self.rows_by_adapter = rows_by_adapter(self.token_lora_indices)

    return update_metadata


def rows_by_adapter(indices: torch.Tensor) -> Rows:
    """(slot, its rows) for each adapter in `indices` (T,); rows None when it has all of them."""
    slots = sorted(set(indices.tolist()))
    if len(slots) == 1:
        return [(slots[0], None)] if slots[0] >= 0 else []
    return [(slot, (indices == slot).nonzero().squeeze(1)) for slot in slots if slot >= 0]


def add_lora_linear(  # noqa: PLR0913, PLR0917  vLLM's signature
    self: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **_: Any,
) -> None:
    """y += scale · x aᵀ bᵀ, slice by slice, in place, for the rows of each adapter."""
    if not self.rows_by_adapter:
        return
    y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    for slot, rows in self.rows_by_adapter:
        inputs = x if rows is None else x.index_select(0, rows)
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            part = y[:, start : start + width]
            shrunk = inputs @ a[slot, 0].T
            if rows is None:
                part.addmm_(shrunk, b[slot, 0].T, alpha=scale)
            else:
                part.index_add_(0, rows, shrunk @ b[slot, 0].T, alpha=scale)
            start += width
