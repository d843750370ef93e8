"""The data that loaders are timed on: datasets built by tokenloom, and their rows as flat arrays for the others.

`sft`: rows of Alpaca, or of the quickstart, as prompts and answers of any length. `stream`: documents of random words,
each one row of LENGTH tokens. `packed`: documents of random words, with lognormal lengths, packed into rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from alpaca import source, write_rows

from tokenloom import DataPipeline
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of, sum_rows

LENGTH, SFT_ROWS, PART = 2048, 51_974, 4096
DOCUMENT = (6.0, 1.1)
"""Mean and standard deviation of the logarithm of a document's token count: about 740 tokens on average."""
TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}\n"


def make_workloads(folder: Path, tokens: int) -> None:
    """Create what is missing: the datasets in `folder/store`, and the flat arrays of each in `folder/<name>`.

    Args:
        folder: where to write.
        tokens: tokens of `stream`, and approximately of `packed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, tokenizer = source(folder)
    words = whole_words(rows, Path(tokenizer) / "tokenizer.json")
    lognormal = np.maximum(2, np.random.default_rng(0).lognormal(*DOCUMENT, tokens // 740)).astype(np.int64)
    lengths = {"stream": np.full(tokens // LENGTH, LENGTH), "packed": lognormal}

    def built(name: str, write: Callable[[Path], None], settings: dict[str, Any]) -> None:
        data = folder / f"{name}.{'jsonl' if name == 'sft' else 'txt'}"
        if (folder / name / "facts.json").exists():
            return
        if not data.exists():
            write(data.with_suffix(".part"))
            data.with_suffix(".part").rename(data)
        settings = {"dataset": {"name": data.name}, "keep": "sequences", **settings}
        settings["tokenizer"] = {"name_or_path": tokenizer, "max_length": LENGTH}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        DataPipeline.from_config(folder / f"{name}.yaml", store=folder / "store").unwrap().build().unwrap()
        store = ArtifactStore(folder / "store")
        flatten(store, name, folder / name)
        collect(store, older_than=timedelta(0), delete=True)
        data.unlink()

    chat = {"format_type": "custom", "template": TEMPLATE, "label_column": "output"}
    built("sft", lambda path: write_rows(path, rows, SFT_ROWS), {"prompt_template": chat})
    for name, length in (("stream", {}), ("packed", {"packing": "concat"})):
        settings = {"prompt_template": {"format_type": "text"}, "length": length}
        built(name, lambda path, name=name: write_documents(path, words, lengths[name]), settings)
    if set(np.diff(np.load(folder / "stream" / "offsets.npy"))) != {LENGTH}:
        raise SystemExit(f"not all rows of stream have {LENGTH} tokens")


def whole_words(rows: list[dict[str, str]], tokenizer_file: Path) -> pa.Array:
    """Return the words of the rows that are one token each, both at the start of a line and after a space."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    words = sorted({word for row in rows for text in row.values() for word in text.split() if word.isalpha()})
    lone, spaced = (
        tokenizer.encode_batch_fast([before + word for word in words], add_special_tokens=False) for before in ("", " ")
    )
    return pa.array([word for word, a, b in zip(words, lone, spaced, strict=True) if len(a.ids) == len(b.ids) == 1])


def write_documents(path: Path, words: pa.Array, lengths: Ints) -> None:
    """Write one document per line, with `lengths` tokens each, including the token that ends it."""
    draw = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(lengths), PART):
            offsets = offsets_of(lengths[start : start + PART] - 1)
            lists = list_array(offsets, words.take(pa.array(draw.integers(0, len(words), offsets[-1]))))
            file.writelines(f"{line}\n" for line in pc.binary_join(lists, " ").to_pylist())


def flatten(store: ArtifactStore, name: str, folder: Path) -> None:
    """Write a dataset's rows as arrays.

    `ids` [tokens] has the dtype of the store. int64 `offsets` [rows + 1]; int64 `prompts` [rows], the number of masked
    tokens at the start of a row; int64 `documents`, the lengths of documents.
    """
    manifest = store.manifest(name)
    columns: dict[str, list[npt.NDArray[Any]]] = {"ids": [], "lengths": [], "prompts": [], "documents": []}
    for chunk in manifest.of_split("train"):
        table = store.objects.get(chunk.output)
        offsets, ids = list_parts(table["input_ids"])
        trained = list_parts(table["trained"])[1].to_numpy()
        falls = np.flatnonzero(np.diff(trained.astype(np.int8)) < 0) + 1
        if not np.isin(falls, offsets).all():
            raise SystemExit(f"rows of {name} have masked tokens after trained ones")
        columns["ids"].append(ids.to_numpy())
        columns["lengths"].append(np.diff(offsets))
        columns["prompts"].append(np.diff(offsets) - sum_rows(trained, offsets))
        columns["documents"].append(list_parts(table["document_lengths"])[1].to_numpy())
    arrays = {part: np.concatenate(values) for part, values in columns.items()}
    arrays["offsets"] = offsets_of(arrays.pop("lengths"))
    folder.mkdir(exist_ok=True)
    for part, array in arrays.items():
        np.save(folder / f"{part}.npy", array)
    facts = {"pad_token_id": manifest.facts["pad_token_id"], "ragged": name == "sft"}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
