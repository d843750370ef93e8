"""The sections of the YAML that drop rows for what they contain: items of evaluations, and what other rows have too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tokenloom.config.address import AddressText
from tokenloom.config.schema import DatasetConfig, Names, Section, first_duplicate
from tokenloom.errors import did_you_mean

SHORTEST_ITEM = 3
"""Fewest words of an item of an evaluation that can be found in rows."""


class EvaluationConfig(Section):
    """An evaluation whose items the rows are compared with."""

    name: Annotated[AddressText, Field(min_length=1)]
    """A hub id, a file, a folder, a glob or a URL, as in `dataset.name`."""
    config: str | None = None
    """Config (subset) of a hub dataset."""
    revision: str | None = None
    """Hub revision: a branch, tag or commit."""
    split: str | None = None
    """Split to use. Default: all."""
    columns: Annotated[Names, Field(min_length=1)] | None = None
    """The text of an item: columns, paths such as `answers[0].text`, or texts with `{column}` placeholders, which are
    joined. Default: the prompt, or the whole text of rows without prompts."""

    @property
    def dataset(self) -> DatasetConfig:
        """Its source, as that of a dataset."""
        splits = None if self.split is None else (self.split,)
        return DatasetConfig(name=self.name, config=self.config, revision=self.revision, splits=splits)

    @property
    def label(self) -> str:
        """How settings, messages and records name it: the last part of its name, and what is chosen of it."""
        last = re.split(r"[/\\]", self.name.partition("?")[0].rstrip("/\\"))[-1]
        while (stem := re.sub(r"\.[A-Za-z]{1,7}$", "", last)) not in (last, ""):
            last = stem
        return "/".join(part for part in (last, self.config, self.split) if part)


class DecontaminateConfig(Section):
    """Removes the rows that contain items of evaluations, so that a model is not tested on what it was trained on."""

    against: Annotated[tuple[AddressText | EvaluationConfig, ...], Field(strict=False, min_length=1)]
    """The evaluations: hub ids, files, or `{name: data.csv, columns: [Question]}`."""
    ngram_size: Annotated[int, Field(ge=SHORTEST_ITEM, le=64)] = 8
    """Words of an n-gram. Items of fewer words are found if a whole line of a row, or a whole message, equals them;
    items of fewer than 3 words are not found."""
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Smallest share of an item's words that a row must contain, in n-grams. N-grams that 10 items of the same
    evaluation share, such as its instructions, do not count."""
    search: Literal["all", "prompt", "completion"] = "all"
    """What of a row is searched. In conversations, `completion` is what the assistant says, `prompt` all else; in
    templates, the trained columns and the others."""
    action: Literal["drop", "report"] = "drop"
    """`drop`: rows that contain an item are dropped, counted as filtered, and recorded. `report`: they stay, and are
    recorded."""
    ignore: Names = ()
    """Items that are no reason to drop a row, such as `gsm8k_test:602`: the name of the evaluation and the number of
    the item, as records show them."""

    @property
    def evaluations(self) -> tuple[EvaluationConfig, ...]:
        """The evaluations, each as a section."""
        return tuple(EvaluationConfig(name=each) if isinstance(each, str) else each for each in self.against)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield settings that name nothing, and why."""
        labels = tuple(each.label for each in self.evaluations)
        if (duplicate := first_duplicate(labels)) is not None:
            setting = f"decontaminate.against.{labels.index(duplicate)}"
            yield setting, f"two evaluations are called {duplicate}; rename the file of one, or name a config or split"
        for number, ignored in enumerate(self.ignore):
            label, _, item = ignored.rpartition(":")
            at = f"decontaminate.ignore.{number}"
            if not (item.isascii() and item.isdigit()):
                yield at, f"{ignored!r} is not an item; write the evaluation and the item's number, as {labels[0]}:1"
            elif label not in labels:
                yield at, f"no evaluation is called {label!r}: {', '.join(labels)}{did_you_mean(label, labels)}"


class NearConfig(Section):
    """When two rows count as nearly the same."""

    threshold: Annotated[float, Field(ge=0.5, le=1.0)] = 0.8
    """Least similarity: the n-grams of words that two rows share, divided by all that either has."""
    ngram_size: Annotated[int, Field(ge=1, le=64)] = 5
    """Words of an n-gram."""
    num_perm: Annotated[int, Field(ge=16, le=1024)] = 128
    """Number of permutations of MinHash, which finds the pairs of rows to compare. More of them find more of the pairs
    that are just as similar as the threshold, and take longer."""


class DedupConfig(Section):
    """Drops the rows that repeat an earlier one. A row that is dropped has an earlier one that is kept. Rows of other
    splits come before those of `train`, so that `train` has none of them."""

    exact: Literal["row", "prompt"] | None = "row"
    """What must be the same: all texts of a `row`, or its `prompt` alone. null: nothing."""
    near: NearConfig | None = NearConfig()
    """Also drop rows that are nearly the same. null: only those that are the same."""
    against: Names = ()
    """Other datasets of the same store, built with the same `dedup`. Their rows come before all of this dataset, which
    loses those that repeat them."""
