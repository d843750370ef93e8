"""Layouts of files of rows: Arrow and Parquet for `datasets` and trainers that read it, and JSON lines of texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import ConfigError
from tokenloom.exporters.layouts import ExportedSplit, FlatDocuments, Layout, Shard, ShardWriter, refuse_weights
from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import SIDES, Ints, list_array, list_views, offsets_of, ranges, sum_rows
from tokenloom.resources.tables.sequence_schema import KINDS, LABEL, LABELLED, PAIR, SEQUENCE

CHUNKING = {"min_chunk_size": 64 << 10, "max_chunk_size": 256 << 10, "norm_level": 0}
"""Sizes in bytes of the pages that Parquet files are cut into by their content."""


_RISING = ("position_ids", "rows")
"""Columns of numbers that rise by one."""


class ParquetFiles(Layout):
    """Parquet whose pages are cut by content, without dictionaries: rows that did not change keep their bytes, so that
    a store that shares pieces of files (Xet) takes only the others."""

    files = ("{split}-{number:05d}-of-{count:05d}.parquet",)
    kinds = KINDS
    images = weights = packed = kept = trees = True
    guide = "```python\npandas.read_parquet('FOLDER/{split}')\ndatasets.load_dataset('FOLDER')\n```\n"

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        origin = json.dumps({"dataset": source.dataset, "version": source.version, "split": source.split})
        return parquet_writer(paths[0], schema.with_metadata({"tokenloom": origin}))


def parquet_writer(path: Path, schema: pa.Schema) -> Any:
    """Return a writer of a Parquet file whose pages are cut by content."""
    from pyarrow import parquet

    rising = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in schema.names if name.endswith(_RISING)}
    settings: dict[str, Any] = {"use_content_defined_chunking": CHUNKING, "use_dictionary": False}
    settings["column_encoding"] = rising or None
    return parquet.ParquetWriter(path, schema, compression="zstd", **settings)


class SavedToDisk(Layout):
    """The layout of `datasets.DatasetDict.save_to_disk`: per split a folder of Arrow streams and two files that
    describe them."""

    files = ("data-{number:05d}-of-{count:05d}.arrow",)
    kinds = KINDS
    images = weights = packed = kept = trees = True
    guide = "```python\ndatasets.load_from_disk('FOLDER')['{split}']\n```\n"

    def __init__(self) -> None:
        import datasets

        self._datasets = datasets

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        return pa.ipc.new_stream(str(paths[0]), self._datasets.Features.from_arrow_schema(schema).arrow_schema)

    def finish_split(self, folder: Path, schema: pa.Schema, source: ExportedSplit, shards: Sequence[Shard]) -> None:
        features = self._datasets.Features.from_arrow_schema(schema)
        described = f"{source.dataset}, version {source.version}"
        info = self._datasets.DatasetInfo(description=described, features=features, dataset_name=source.dataset)
        info.write_to_directory(str(folder))
        state = {
            "_data_files": [{"filename": name} for shard in shards for name in shard.files],
            "_fingerprint": digest_json([source.digest, str(schema)])[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": source.split,
        }
        (folder / "state.json").write_text(json.dumps(state, indent=2))

    def finish(self, folder: Path, splits: list[str]) -> None:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))


class PreparedForTrl(SavedToDisk):
    """Columns that TRL's trainers make of their datasets (trl 1.16, `_prepare_dataset` of each trainer): `input_ids`,
    `labels` and for packed rows `seq_lengths`, which `SFTTrainer` uses as they are; `prompt_ids`, `chosen_ids` and
    `rejected_ids` of `DPOTrainer`; `prompt_ids`, `completion_ids` and `label` of `KTOTrainer`.

    The last two train on all tokens after the prompt. What follows the last trained token has no effect on the loss
    and is not written; a row with a masked token between trained ones is refused.
    """

    kinds = (SEQUENCE, PAIR, LABELLED)
    trees = weights = images = kept = False
    guide = """\
```python
rows = datasets.load_from_disk("FOLDER")
SFTTrainer(model, SFTConfig(max_length=None), train_dataset=rows["{split}"], processing_class=tokenizer)
```

Packed rows need `padding_free=True` and flash attention. `DPOTrainer` and `KTOTrainer` always prepare their datasets;
these subclasses take prepared rows:

```python
class PreparedDPOTrainer(DPOTrainer):
    def _prepare_dataset(self, dataset, *others):
        return dataset


class PreparedKTOTrainer(KTOTrainer):
    def _prepare_dataset(self, dataset, processing_class, args, name):
        def mismatched(rows):
            return {{"KL_completion_ids": rows["completion_ids"][-1:] + rows["completion_ids"][:-1]}}

        size = args.per_device_train_batch_size
        return dataset.map(mismatched, batched=True, batch_size=size) if self.calculate_KL else dataset
```
"""

    def columns(self, table: pa.Table, source: ExportedSplit) -> pa.Table:
        refuse_weights("trl", table)
        if source.kind == SEQUENCE:
            names = ("input_ids", "labels", "seq_lengths")
            return table.select([name for name in names if name in table.column_names])
        if source.kind == LABELLED:
            prompt, completion = _prompt_and_completion(table, "")
            return pa.table({"prompt_ids": prompt, "completion_ids": completion, LABEL: table[LABEL]})
        (prompt, chosen), (other, rejected) = (_prompt_and_completion(table, f"{side}_") for side in SIDES)
        if not prompt.equals(other):
            message = "trl has one prompt per pair, and a pair has different tokens before its answers; use --to hf"
            raise ConfigError.at("--to", message)
        return pa.table({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})


def _prompt_and_completion(table: pa.Table, side: str) -> tuple[pa.ListArray, pa.ListArray]:
    """Return the tokens of each row before the first trained one, and those up to the last trained one."""
    if f"{side}seq_lengths" in table.column_names:
        raise ConfigError.at("--to", "trl has no packed rows for DPO and KTO; set length.packing: none, or use --to hf")
    rows = FlatDocuments.of(table, side)
    places, begins = np.flatnonzero(rows.trained), rows.offsets[:-1]
    counts = sum_rows(rows.trained, rows.offsets)
    first = offsets_of(counts)[:-1]
    some = counts > 0
    start, end = rows.offsets[1:].copy(), rows.offsets[1:].copy()
    start[some], end[some] = places[first[some]], places[(first + counts - 1)[some]] + 1
    # As many trained tokens as places from the first to the last: then none between them is masked.
    if (end - start != counts).any():
        message = (
            "trl trains all tokens after a prompt, and a row has masked tokens between trained ones, such as those of "
            "several turns; use --to hf, or prompt_template.train_on: last"
        )
        raise ConfigError.at("--to", message)
    return _parts(rows.ids, begins, start), _parts(rows.ids, start, end)


def _parts(ids: np.ndarray, starts: Ints, ends: Ints) -> pa.ListArray:
    return list_array(offsets_of(ends - starts), ids[ranges(starts, ends - starts)])


class _Tokenized:
    """`input_ids`, `attention_mask` and `labels`, one document per row."""

    def columns(self, table: pa.Table, source: ExportedSplit) -> pa.Table:
        refuse_weights(type(self).__name__.lower(), table)
        if source.kind == PAIR:
            kinds = ("input_ids", "attention_mask", "labels")
            return table.select([f"{side}_{kind}" for side in SIDES for kind in kinds])
        rows = FlatDocuments.of(table)
        ones = np.ones(len(rows.ids), np.int8)
        names = {"input_ids": rows.ids, "attention_mask": ones, "labels": rows.labels}
        return pa.table({name: rows.lists(values) for name, values in names.items()})


class Axolotl(_Tokenized, ParquetFiles):
    """Pre-tokenized rows of axolotl, recognized by exactly these columns (`_is_dataset_already_tokenized` in
    `axolotl/utils/data/wrappers.py`, 0.19). axolotl packs documents itself."""

    kinds = (SEQUENCE,)
    trees = images = weights = packed = kept = False
    guide = """\
```yaml
datasets:
  - path: FOLDER/{split}
    ds_type: parquet
    type:            # empty: the rows are tokenized
sample_packing: true # as you like
```
"""


class LlamaFactory(_Tokenized, SavedToDisk):
    """Tokenized rows of LLaMA-Factory, as its `tokenized_path` stores them (`get_dataset` in
    `llamafactory/data/loader.py`, 0.9.5). It reads the splits `train` and `validation`."""

    kinds = (SEQUENCE, PAIR)
    trees = images = weights = packed = kept = False
    guide = """\
```yaml
tokenized_path: FOLDER
stage: sft           # dpo or rm for preference pairs
```

LLaMA-Factory reads the splits `train` and `validation`, and then ignores `dataset`, `template` and `cutoff_len`.
"""


class SkyRl(ParquetFiles):
    """Pretokenized rows of SkyRL (`skyrl/train/dataset/pretokenized.py`): `input_ids` and a `loss_mask` of the whole
    sequence, from which its reader infers `num_actions`. It refuses masks of the last `num_actions` tokens."""

    kinds = (SEQUENCE,)
    trees = images = weights = packed = kept = False
    guide = """\
```bash
python -m skyrl.train.main_sft "pretokenized_dataset_paths=[FOLDER/{split}]"
```

SkyRL infers `num_actions` from the first trained token, and drops rows without one.
"""

    def columns(self, table: pa.Table, source: ExportedSplit) -> pa.Table:
        refuse_weights("skyrl", table)
        rows = FlatDocuments.of(table)
        return pa.table({"input_ids": rows.lists(rows.ids), "loss_mask": rows.lists(rows.trained.astype(np.int8))})


class MegatronPacked(ParquetFiles):
    """Packed sequences of Megatron-Bridge (`GPTSFTPackedParquetDataset` in
    `src/megatron/bridge/data/packing/parquet.py`): `loss_mask` is aligned with targets, that is rolled left by one with
    0 at the end, and `seq_start_id` has the first token of each document."""

    files = ("{split}-{number:05d}-of-{count:05d}.idx.parquet",)
    kinds = (SEQUENCE,)
    trees = images = weights = kept = False
    guide = """\
```python
PackedSequenceSpecs(packed_train_data_path="FOLDER/{split}", packed_sequence_size=MAX_LENGTH, pad_seq_to_mult=1)
```

Megatron-Bridge takes the last token of a document off its input, and never trains where the *input* is EOS. With
`pad_seq_to_mult` above 1 it takes every EOS at the end of a document for padding: keep it at 1 where EOS is the stop.
"""

    def columns(self, table: pa.Table, source: ExportedSplit) -> pa.Table:
        refuse_weights("megatron-sft", table)
        offsets, ids = list_views(table["input_ids"])
        documents = FlatDocuments.of(table)
        targets = np.append(documents.trained[1:], False).astype(np.int8)
        targets[documents.offsets[1:] - 1] = 0
        counts = offsets_of(np.bincount(documents.rows, minlength=table.num_rows))
        starts = documents.offsets[:-1] - offsets[documents.rows]
        columns = {
            "input_ids": list_array(offsets, ids),
            "loss_mask": list_array(offsets, targets),
            "seq_start_id": list_array(counts, starts.astype(np.int32)),
        }
        return pa.table(columns)


class JsonLines(Layout):
    """One JSON object per document: `segments`, a list of `{text, label}`, as axolotl's `input_output` and tokenloom
    read it; lists `chosen` and `rejected` for pairs, and `label` beside `segments` for KTO rows."""

    files = ("{split}-{number:05d}-of-{count:05d}.jsonl",)
    kinds = KINDS
    weights = True
    guide = """\
Each line has the whole text of a document, control tokens included, in `segments`; those with a true `label` are
trained.

```yaml
datasets:            # axolotl
  - path: FOLDER/{split}
    ds_type: json
    type: input_output
```

tokenloom reads the same files: `dataset: {{name: FOLDER/{split}}}`. Tokenizing the texts again can give other tokens
where a token spans two segments, or a character has several tokens.
"""

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        return _JsonWriter(paths[0], source)


class _JsonWriter:
    def __init__(self, path: Path, source: ExportedSplit):
        from tokenizers import Tokenizer

        self._file = path.open("w", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(source.tokenizer / "tokenizer.json"))
        self._decode, self._kind = tokenizer.decode, source.kind

    def write_table(self, table: pa.Table) -> None:
        """Write the documents of rows, one per line."""
        names = {f"{side}_": side for side in SIDES} if self._kind == PAIR else {"": "segments"}
        columns = [[(name, each) for each in self._segments(table, side)] for side, name in names.items()]
        labels = table[LABEL].to_pylist() if self._kind == LABELLED else None
        for number, row in enumerate(zip(*columns, strict=True)):
            line: dict[str, Any] = dict(row) | ({LABEL: labels[number]} if labels else {})
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _segments(self, table: pa.Table, side: str) -> Iterator[list[dict[str, Any]]]:
        rows = FlatDocuments.of(table, side)
        column = f"{side}loss_weights"
        weights = list_views(table[column])[1] if column in table.column_names else rows.trained.astype(np.float32)
        for begin, end in pairwise(rows.offsets.tolist()):
            own = weights[begin:end]
            bounds = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), end - begin]
            yield list(self._texts(rows.ids[begin:end].tolist(), bounds, own.tolist()))

    def _texts(self, ids: list[int], bounds: list[int], weights: list[float]) -> Iterator[dict[str, Any]]:
        """Yield the segments of a document, whose texts add up to what all tokens decode to."""
        before = ""
        for begin, end in pairwise(bounds):
            text = self._decode(ids[:end], skip_special_tokens=False)
            weight = weights[begin] if begin < end else 0.0
            segment: dict[str, Any] = {"text": text[len(before) :], "label": weight > 0}
            yield segment if weight in (0, 1) else segment | {"weight": weight}
            before = text

    def close(self) -> None:
        """Close the file."""
        self._file.close()
