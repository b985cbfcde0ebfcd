"""Reading and writing tables; the hub, or a local file in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_grail.data.sources import Row, Source


class DataError(Exception):
    """A file or data set that cannot be had or read; the message says what to do."""


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a .parquet, .jsonl or .json file.

    Raises:
        DataError: no such file, another format, or not a table.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            for batch in pq.ParquetFile(path).iter_batches(1024):
                yield from batch.to_pylist()
        elif path.suffix in (".jsonl", ".json"):
            text = path.read_text(encoding="utf-8")
            lines = map(json.loads, filter(str.strip, text.splitlines()))
            yield from (json.loads(text) if path.suffix == ".json" else lines)
        else:
            raise DataError(f"{path}: only .parquet, .jsonl and .json are read")
    except (OSError, ValueError) as e:  # pyarrow's errors are either
        raise DataError(f"{path} cannot be read: {e}") from e


def hub_rows(source: Source) -> Iterator[Row]:
    """Rows of a data set from the Hugging Face hub.

    Raises:
        DataError: the hub or the data set cannot be reached.
    """
    import datasets

    try:
        table = datasets.load_dataset(source.hub, source.subset, split=source.split)
    except Exception as e:  # of datasets, huggingface_hub, requests: any of them means that there is none here
        why = (str(e).splitlines() or [""])[0][:200]
        raise DataError(
            f"{source.hub} cannot be loaded from the hub ({type(e).__name__}: {why}): download its files elsewhere, "
            "and give one with --file"
        ) from e
    yield from table


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Rows as a parquet file; its folder is made."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
