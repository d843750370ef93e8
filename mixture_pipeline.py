"""Python's front door to a mixture: from its YAML to batches, building the datasets that are missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokenloom.assets.build import StageReport
from tokenloom.assets.members import find_members
from tokenloom.assets.mixture_build import MixtureBuild
from tokenloom.config_mixture import MixtureConfig
from tokenloom.errors import ConfigError, Result, TokenloomError, attempt
from tokenloom.pipeline import DataPipeline
from tokenloom.resources.store import ArtifactStore, Version
from tokenloom.resources.store.manifest import MIXTURE

if TYPE_CHECKING:
    from tokenloom.assets.prompt_engine import PromptEngine
    from tokenloom.loaders import MixedDataset


class MixturePipeline(DataPipeline):
    """A mixture: its config, and the store that holds what was built of its datasets.

    All is as in `DataPipeline`, but that datasets are `MixedDataset`s, and that versions and prompt engines are those
    of each dataset: they are refused here.
    """

    config: MixtureConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # what mixes has no `dataset`

    def __init__(self, config: MixtureConfig, store: str | os.PathLike[str] | None = None):
        self.config, self.store = config, ArtifactStore(store)

    def build(self, limit: int | None = None) -> Result[list[StageReport], TokenloomError]:
        """Run every stage of every dataset, computing only what no earlier build did, and publish the mixture.

        Reports are named `<dataset>/<stage>`.
        """

        def built() -> list[StageReport]:
            from tokenloom.loaders.stored_mixture import mixed_dataset

            build = MixtureBuild(self.config, self.store, limit=limit)
            reports = list(build.run_all())
            build.publish(mixed_dataset)
            return reports

        return attempt(built)

    def versions(self) -> list[Version]:
        """
        Raises:
            ConfigError: each dataset has its own.
        """
        raise self._each_has_its_own("versions")

    def get_dataset(  # pyright: ignore[reportIncompatibleMethodOverride]  # what it opens is no `TokenDataset`
        self, split: str = "train", version: str | None = None, verify: bool = True
    ) -> Result[MixedDataset, TokenloomError]:
        """The sequences of a split of all datasets, mixed, building what is missing.

        Args:
            version: None; each dataset has its own versions.
            verify: check the datasets' bytes when they are first read, as `open_dataset` does.
        """

        def opened() -> MixedDataset:
            from tokenloom.loaders import open_mixture

            if version is not None:
                raise self._each_has_its_own("versions")
            self.build().unwrap()
            try:
                return open_mixture(self.config.dataset_name, split, self.store.address, verify)
            except ValueError as error:
                raise self.config.fault("mixture", f"mixture: {error}") from None

        return attempt(opened)

    def get_tokenizer(self) -> Result[Any, TokenloomError]:
        """The tokenizer of the first dataset, as `transformers` loads it, building what is missing."""

        def loaded() -> Any:
            from transformers import AutoTokenizer

            self.build().unwrap()
            pinned = self.store.manifest(self.config.dataset_name, MIXTURE).pinned[self.config.names[0]]
            facts = self.store.manifest_at(pinned).facts
            return AutoTokenizer.from_pretrained(str(self.store.tokenizer_folder(facts["tokenizer"])))

        return attempt(loaded)

    def get_prompt_engine(self) -> Result[PromptEngine, TokenloomError]:
        """An error: each dataset has its own."""

        def refused() -> PromptEngine:
            raise self._each_has_its_own("prompt engine")

        return attempt(refused)

    @property
    def _streams(self) -> bool:
        return False

    @property
    def _padding(self) -> tuple[Any, Any]:
        """As the YAMLs of the datasets say; of those that only the store holds nothing is known."""
        for member in find_members(self.config, self.store.datasets):
            if member.config is not None:
                return member.config.tokenizer.padding, member.config.tokenizer.padding_side
        return "max_length", "right"

    def _each_has_its_own(self, what: str) -> ConfigError:
        told = f"{self.config.dataset_name} is a mixture; each of its datasets has its own {what}"
        return self.config.fault("mixture", f"mixture: {told}: {', '.join(self.config.names)}")
