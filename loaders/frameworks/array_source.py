"""What an `ArrayDataLoader` reads: what is named, in the store, or as a file or folder of raw text."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError, DatasetNotFoundError, Fault
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
    """Open what is named; where nothing is, what a `DataPipeline` builds.

    Args:
        named: the name of a dataset or mixture, a path, or a dataset that is open.
        pipeline: a `DataPipeline`; anything else does not count.
        max_length: what rows of raw text are cut to.

    Raises:
        ConfigError: nothing is named, raw text has no tokenizer, or a built dataset has another one.
        DatasetNotFoundError: neither the store nor a path has that name, or it has no such split.
        SourceError: a file of raw text cannot be read.
    """
    found: Any = named
    if hasattr(pipeline, "get_dataset"):
        store = pipeline.store.address
        found = pipeline.get_dataset(split).unwrap() if found is None else found
    if found is None:
        raise _fault("dataset_name", "there is nothing to read; name a built dataset, or a file of texts")
    if isinstance(found, str | os.PathLike):
        found = _by_name(os.fspath(found), tokenizer, split, max_length, store)
    if tokenizer is not None and not isinstance(found, TextDataset):
        _check_tokenizer(tokenizer, found)
    return found


def _by_name(
    name: str,
    tokenizer: TextEncoder | None,
    split: str,
    max_length: int,
    store: str | os.PathLike[str] | None,
) -> Opened:
    opened = ArtifactStore(store)
    held = opened.datasets()
    if name in held:
        kind = open_mixture if MIXTURE in opened.stages(name) else open_dataset
        return kind(name, split, opened.address)
    path = Path(name).expanduser()
    if not path.exists():
        close = difflib.get_close_matches(name, held, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DatasetNotFoundError(
            f"there is no dataset and no file {name!r}; {hint}the store {opened.address} holds "
            f"{', '.join(held) or 'nothing'}: build it with `tokenloom build`, or name a file of texts"
        )
    if tokenizer is None:
        raise _fault("tokenizer", f"{name} is raw text, which needs a tokenizer")
    if split != TRAIN:
        raise DatasetNotFoundError(f"{name} is raw text: it has no split {split!r}, only {TRAIN!r}")
    return TextDataset(path, tokenizer, max_length)


def _check_tokenizer(tokenizer: Any, dataset: TokenDataset | MixedDataset) -> None:
    """Refuse a tokenizer that knows other ids for the dataset's tokens; one may know fewer tokens, or more."""
    if not hasattr(tokenizer, "get_vocab"):
        return
    from tokenloom.resources.tokenizers.tokenizer_json import vocabulary

    own = vocabulary(json.loads((Path(dataset.tokenizer_path) / "tokenizer.json").read_bytes()))
    known = tokenizer.get_vocab()
    differ = [token for token, _ in known.items() - own.items() if token in own]
    if differ or not known.keys() & own.keys():
        token = min(differ, default="")
        told = f"its id of {token!r} is {known[token]}, the dataset's {own[token]}" if differ else "it shares no token"
        raise _fault(
            "tokenizer",
            f"the dataset was built with another one ({told}); leave it out, or load the dataset's: "
            f"AutoTokenizer.from_pretrained({dataset.tokenizer_path!r})",
        )


def _fault(place: str, message: str) -> ConfigError:
    return ConfigError([Fault(place, message)])
