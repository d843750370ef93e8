"""Opens a built mixture: its datasets in the versions it was built from, interleaved by its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import open_split, saved_version
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import MIXTURE


def open_mixture(
    name: str,
    split: str = "train",
    store: str | os.PathLike[str] | None = None,
    verify: bool = True,
    pin: str | None = None,
    state: Mapping[str, Any] | None = None,
) -> MixedDataset:
    """Open a built mixture by name. It keeps reading the same dataset versions until it is built again.

    Args:
        name: the mixture's name: the stem of its YAML file, or the YAML's `name`.
        split: a split that each of its datasets has.
        store, verify, pin: as in `open_dataset`.
        state: a loader's state: opens the versions of the datasets that it was saved with, mixed as the mixture now is.

    Raises:
        DatasetNotFoundError: the mixture does not exist, or a dataset lacks the split; the message lists what exists.
        LoaderStateError: the state names no version of a dataset.
        StoreError: the store is damaged.
        ValueError: two of its datasets do not fit into one batch.
    """
    opened = ArtifactStore(store)
    if pin is None and state is None:
        return _latest(opened, name, split, verify)
    if pin is None:
        manifest = opened.manifest(name, MIXTURE)
    else:
        manifest = opened.manifest_at(opened.pinned(name, pin, MIXTURE).stages[MIXTURE])
    if state is not None:
        saved = {each: saved_version(opened, state, each) for each in manifest.pinned}
        opens = {each: opened.manifest_digest(each, version=version) for each, version in saved.items()}
        manifest = replace(manifest, notes=manifest.notes | {"manifests": opens})
    return mixed_dataset(opened, manifest, split, verify)


def _latest(store: ArtifactStore, name: str, split: str, verify: bool) -> MixedDataset:
    """Open the latest state of a mixture, also if builds replace it and `gc` removes its datasets in the meantime."""
    while True:
        digest = store.manifest_digest(name, MIXTURE)
        try:
            return mixed_dataset(store, store.manifest_at(digest), split, verify)
        except StoreError:
            if store.manifest_digest(name, MIXTURE) == digest:
                raise


def mixed_dataset(store: ArtifactStore, manifest: Manifest, split: str = "train", verify: bool = True) -> MixedDataset:
    """Return the mixture that a manifest describes."""
    try:
        sources = {source["dataset"]: source for source in manifest.facts["datasets"]}
        digests = {name: manifest.pinned[name] for name in sources}
        weights = {name: float(source["weight"]) for name, source in sources.items()}
        epochs = {name: float(source["epochs"]) for name, source in sources.items() if source["epochs"] is not None}
        by = manifest.facts["by"]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the manifest of mixture {manifest.dataset!r} is damaged; build it again") from error
    datasets = {name: open_split(store, digest, split, verify) for name, digest in digests.items()}
    return MixedDataset(datasets, weights, by, epochs)
