"""Opens mixtures that a store holds: datasets, as they were when the mixture was built, and how they take turns."""

from __future__ import annotations

import os

from tokenloom.loaders.datasets.mixed_dataset import MixedDataset
from tokenloom.loaders.datasets.token_dataset import open_split
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import MIXTURE


def open_mixture(
    name: str, split: str = "train", store: str | os.PathLike[str] | None = None, verify: bool = True
) -> MixedDataset:
    """Open a mixture that was built, by name. Later builds of its datasets change it only when it is built again.

    Args:
        name: its YAML's stem, or the YAML's `name`.
        split: which each of its datasets must have.
        store, verify: as in `open_dataset`.

    Raises:
        DatasetNotFoundError: no such mixture, or a dataset lacks the split; the message lists those there are.
        StoreError: the store is damaged.
        ValueError: two of its datasets do not fit into one batch.
    """
    opened = ArtifactStore(store)
    return mixed_dataset(opened, opened.manifest(name, MIXTURE), split, verify)


def mixed_dataset(store: ArtifactStore, manifest: Manifest, split: str = "train", verify: bool = True) -> MixedDataset:
    """The datasets that the manifest of a mixture names, mixed."""
    told = {source["dataset"]: source for source in manifest.facts["datasets"]}
    datasets = {name: open_split(store, manifest.pinned[name], split, verify) for name in told}
    weights = {name: source["weight"] for name, source in told.items()}
    epochs = {name: source["epochs"] for name, source in told.items() if source["epochs"] is not None}
    return MixedDataset(datasets, weights, manifest.facts["by"], epochs)
