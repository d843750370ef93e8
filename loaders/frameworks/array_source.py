"""Opens the dataset of an `ArrayDataLoader`: a name in the store, or a file or folder of raw text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError, DatasetNotFoundError, Fault, did_you_mean
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.stored_mixture import open_mixture
from tokenloom.loaders.datasets.token_dataset import TokenDataset, open_dataset
from tokenloom.loaders.raw_text.encoding import TextEncoder
from tokenloom.loaders.raw_text.text_dataset import TRAIN, TextDataset
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.manifest import MIXTURE

Opened = TokenDataset | MixedDataset | TextDataset


def open_source(
    named: Any,
    pipeline: Any,
    tokenizer: TextEncoder | None,
    split: str,
    max_length: int,
    store: str | os.PathLike[str] | None = None,
) -> Opened:
    """Open a dataset by name, or build and open that of a `DataPipeline`.

    Args:
        named: the name of a dataset or mixture, a path, or an open dataset; None: the pipeline's dataset.
        pipeline: a `DataPipeline`; anything else is ignored.
        tokenizer: tokenizes raw text; for a built dataset, it is checked against the dataset's.
        split: name of the split.
        max_length: maximum tokens per row of raw text.
        store: the store's address, unless there is a pipeline.

    Raises:
        ConfigError: no dataset is given, raw text has no tokenizer, or the tokenizer is not the dataset's.
        DatasetNotFoundError: neither the store nor a path has that name, or the split does not exist.
        SourceError: a file of raw text cannot be read.
    """
    dataset: Any = named
    if hasattr(pipeline, "get_dataset"):
        store = pipeline.store.address
        dataset = pipeline.get_dataset(split).unwrap() if dataset is None else dataset
    if dataset is None:
        raise _fault("dataset_name", "no dataset to read; name a built dataset, or a file of texts")
    if isinstance(dataset, str | os.PathLike):
        dataset = _by_name(os.fspath(dataset), tokenizer, split, max_length, store)
    if tokenizer is not None and not isinstance(dataset, TextDataset):
        _check_tokenizer(tokenizer, dataset)
    return dataset


def _by_name(
    name: str,
    tokenizer: TextEncoder | None,
    split: str,
    max_length: int,
    store: str | os.PathLike[str] | None,
) -> Opened:
    opened = ArtifactStore(store)
    known = opened.datasets()
    if name in known:
        kind = open_mixture if MIXTURE in opened.stages(name) else open_dataset
        return kind(name, split, opened.address)
    path = Path(name).expanduser()
    if not path.exists():
        raise DatasetNotFoundError(
            f"no dataset or file {name!r} found; the store {opened.address} has {', '.join(known) or 'no datasets'}: "
            f"build it with `tokenloom build`, or name a file of texts{did_you_mean(name, known)}"
        )
    if tokenizer is None:
        raise _fault("tokenizer", f"{name} is raw text; pass a tokenizer")
    if split != TRAIN:
        raise DatasetNotFoundError(f"{name} is raw text, which has no split {split!r}, only {TRAIN!r}")
    return TextDataset(path, tokenizer, max_length)


def _check_tokenizer(tokenizer: Any, dataset: TokenDataset | MixedDataset) -> None:
    """Check that a tokenizer has the same ids as the dataset's for the tokens they share, at least one.

    Raises:
        ConfigError: it has other ids.
    """
    if not hasattr(tokenizer, "get_vocab"):
        return
    from tokenloom.resources.tokenizers.tokenizer_json import vocabulary

    own = vocabulary(json.loads((Path(dataset.tokenizer_path) / "tokenizer.json").read_bytes()))
    known = tokenizer.get_vocab()
    differing = [token for token, _ in known.items() - own.items() if token in own]
    if differing or not known.keys() & own.keys():
        token = min(differing, default="")
        ids = f"{token!r} has id {known[token]}, but {own[token]} in the dataset's" if differing else "no shared tokens"
        raise _fault(
            "tokenizer",
            f"the dataset was built with another tokenizer ({ids}); omit the tokenizer, or load the dataset's: "
            f"AutoTokenizer.from_pretrained({dataset.tokenizer_path!r})",
        )


def _fault(place: str, message: str) -> ConfigError:
    return ConfigError([Fault(place, message)])
