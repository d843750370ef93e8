"""Pins: published states of a dataset or mixture that runs need, by the run's name. `gc` keeps what they name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tokenloom.errors import DatasetNotFoundError, StoreError, did_you_mean
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.store.records import decode_record, encode_record

PINS = "pins"

RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"


@dataclass(frozen=True)
class Pin:
    """A pinned state of a dataset or mixture.

    Args:
        dataset: its name.
        run: the name of the pin, usually that of a training run.
        digest: content digest of the pinned version.
        stages: object digest of each stage's manifest; of a mixture, of its manifest.
        created: time in UTC, ISO 8601.
    """

    dataset: str
    run: str
    digest: str
    stages: dict[str, str]
    created: str = ""

    def __str__(self) -> str:
        return f"{self.dataset} {self.digest[:12]}"


class PinStore:
    """Reads, adds and removes pins."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def add(self, pin: Pin) -> Pin:
        """Store a pin, unless it exists with the same version; returns the stored one.

        Raises:
            DatasetNotFoundError: the run already pins another version.
            ValueError: the run's name is not valid.
        """
        name, now = self.blob(pin.dataset, pin.run), datetime.now(UTC).isoformat(timespec="seconds")
        content = {"digest": pin.digest, "stages": pin.stages, "created": now}
        self._blobs.create_new(name, encode_record(name, content))
        stored = self.find(pin.dataset, pin.run)
        if stored is None:
            raise StoreError(f"{name} was removed while it was written")
        if stored.digest != pin.digest:
            raise DatasetNotFoundError(
                f"the run {pin.run!r} already pins {stored}, not {pin.digest[:12]}; use another name, or first run "
                f"tokenloom unpin {pin.dataset} --as {pin.run}"
            )
        return stored

    def find(self, dataset: str, run: str) -> Pin | None:
        """Return a run's pin of a dataset, or None if it has none.

        Raises:
            StoreError: the pin is damaged, so it is unknown what it names.
            ValueError: the run's name is not valid.
        """
        return self.read(self.blob(dataset, run))

    def of(self, dataset: str) -> list[Pin]:
        """Return the pins of a dataset, by run.

        Raises:
            StoreError: a pin is damaged, so it is unknown what it names.
        """
        names = [blob.name for blob in self._blobs.below(f"{PINS}/{dataset}") if blob.name.endswith(".json")]
        return [pin for name in names if (pin := self.read(name)) is not None]

    def read(self, name: str) -> Pin | None:
        """Return the pin in a blob, or None if it does not exist.

        Raises:
            StoreError: it is damaged.
        """
        _, dataset, *rest = name.removesuffix(".json").split("/")
        run = "/".join(rest)
        try:
            entry: Any = decode_record(name, self._blobs.read(name))
            stages = {str(stage): str(manifest) for stage, manifest in dict(entry["stages"]).items()}
            return Pin(dataset, run, str(entry["digest"]), stages, str(entry["created"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise StoreError(
                f"{name} cannot be read, so what it names is unknown; run tokenloom unpin {dataset} --as {run}, then "
                "pin the version again"
            ) from None

    def require(self, dataset: str, run: str) -> str:
        """Return the blob name of a pin that exists.

        Raises:
            DatasetNotFoundError: it does not exist; the message lists those that do.
            ValueError: the run's name is not valid.
        """
        name = self.blob(dataset, run)
        if self._blobs.size(name) is None:
            runs = [
                blob.name.rpartition("/")[2].removesuffix(".json") for blob in self._blobs.below(f"{PINS}/{dataset}")
            ]
            known = ", ".join(runs) or "none"
            raise DatasetNotFoundError(f"{dataset!r} has no pin {run!r} (pins: {known}){did_you_mean(run, runs)}")
        return name

    def remove(self, dataset: str, run: str) -> None:
        """Remove a pin.

        Raises:
            DatasetNotFoundError: it does not exist; the message lists those that do.
            ValueError: the run's name is not valid.
        """
        self._blobs.delete(self.require(dataset, run))

    @staticmethod
    def blob(dataset: str, run: str) -> str:
        """Return the blob name of a pin.

        Raises:
            DatasetNotFoundError: the dataset's name is not valid.
            ValueError: the run's name is not valid.
        """
        if dataset in ("", ".", "..") or "/" in dataset or "\\" in dataset:
            raise DatasetNotFoundError(f"{dataset!r} is not a valid dataset name")
        if not isinstance(run, str) or not re.fullmatch(RUN_NAME, run):
            raise ValueError(f"a pin's name must be letters, digits, _, . and -, at most 100, got {run!r}")
        return f"{PINS}/{dataset}/{run}.json"
