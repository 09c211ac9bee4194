"""What is trained on, token by token: one line, or one row of a table, for each row of a rollout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from appliance.errors import ExportError
from appliance.report.trace import Recollection

BATCH = 512
"""Rows a row group of the table."""


def lines(told: Recollection) -> Iterator[dict[str, Any]]:
    """ids, mask (1 where this row trains the token), logprobs (0 where it does not), advantage and reward."""
    for number, row in enumerate(told.found.rows):
        yield {
            "run": told.run.id,
            "rollout": told.rollout.id,
            "row": number,
            "step": told.rollout.plan.step,
            "harness": told.rollout.plan.harness,
            "task": told.rollout.plan.task,
            "ids": row.ids.tolist(),
            "mask": row.mask.astype(int).tolist(),
            "logprobs": [float(x) for x in row.behaviour_logprobs],
            "calls": row.calls.tolist(),
            "advantage": told.advantage,
            "reward": told.rollout.reward,
        }


def write_table(rows: Iterable[dict[str, Any]], target: Path) -> int:
    """Writes the lines as a Parquet file and returns their number."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ExportError("parquet needs the package pyarrow", "run ./install.sh, or export tokens as JSONL") from error
    int32, text, number = pa.int32(), pa.string(), pa.float64()
    kinds = {"run": text, "rollout": pa.int64(), "row": int32, "step": int32, "harness": text, "task": text}
    kinds |= {"ids": pa.list_(int32), "mask": pa.list_(pa.int8()), "logprobs": pa.list_(pa.float32())}
    kinds |= {"calls": pa.list_(int32), "advantage": number, "reward": number}
    schema, count, batch = pa.schema(list(kinds.items())), 0, []
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for row in rows:
            batch.append(row)
            count += 1
            if len(batch) == BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema))
    return count
