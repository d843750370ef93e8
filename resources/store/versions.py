"""Versions: every state that a dataset was published in, as the manifests of its stages, in order of time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tokenloom.errors import DatasetNotFoundError
from tokenloom.resources.digest import canonical_json
from tokenloom.resources.store.blobs.blobs import Blob, Blobs

VERSIONS = "versions"

LOADED = "sequences"
"""The stage that loaders open; its content gives a version its name."""

LISTED = 5
"""So many versions are named where none fits."""

_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class Version:
    """One state of a dataset.

    Args:
        digest: of the content of its last stage.
        published: when, in UTC.
        stages: for each stage, the object digest of its manifest.
    """

    digest: str
    published: datetime
    stages: dict[str, str]

    def __str__(self) -> str:
        return f"{self.digest[:12]} of {self.published:%Y-%m-%d %H:%M:%S} UTC"


class VersionStore:
    """Reads and adds to the versions of datasets."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def add(self, dataset: str, digest: str, stages: dict[str, str]) -> None:
        """Note what is published now, unless it is what was published last."""
        names = [blob.name for blob in self._blobs.below(self.folder(dataset))]
        last = next(filter(None, map(self.read, reversed(names))), None)
        if last is not None and (last.digest, last.stages) == (digest, stages):
            return
        version = Version(digest, datetime.now(UTC), stages)
        self.put(f"{self.folder(dataset)}/{version.published.strftime(_STAMP)}-{digest[:16]}.json", version)

    def put(self, name: str, version: Version) -> None:
        """Write a version into a blob."""
        self._blobs.write(name, canonical_json({"digest": version.digest, "stages": version.stages}))

    def of(self, dataset: str) -> list[Version]:
        """All versions of a dataset, the oldest first; unreadable ones are left out."""
        return [found for blob in self.blobs(dataset) if (found := self.read(blob.name))]

    def blobs(self, dataset: str) -> list[Blob]:
        """The blobs that hold a dataset's versions, the oldest first."""
        return [blob for blob in self._blobs.below(self.folder(dataset)) if blob.name.endswith(".json")]

    def read(self, name: str) -> Version | None:
        """The version in a blob, or None where it cannot be read."""
        try:
            entry = json.loads(self._blobs.read(name))
            published = datetime.strptime(name.rpartition("/")[2].partition("-")[0], _STAMP).replace(tzinfo=UTC)
            stages = {str(stage): str(manifest) for stage, manifest in dict(entry["stages"]).items()}
            return Version(str(entry["digest"]), published, stages)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def find(self, dataset: str, wanted: str) -> Version:
        """The version that is meant by a digest's first characters (at least 4), or the latest one that was published
        by a date (`2026-03-01`, to the end of that day, or `2026-03-01T12:00`; UTC where no zone is named).

        Raises:
            DatasetNotFoundError: there is none, or several; the message lists what there is.
        """
        known = self.of(dataset)
        if (moment := _moment(wanted)) is not None:
            fitting = [version for version in known if version.published <= moment][-1:]
        else:
            fitting = (
                [version for version in known if version.digest.startswith(wanted.lower())] if len(wanted) >= 4 else []
            )
        if len({version.digest for version in fitting}) == 1:
            return fitting[-1]
        shown = fitting or known
        listed = ", ".join(map(str, shown[-LISTED:])) or "none"
        problem = "several versions" if fitting else "no version"
        raise DatasetNotFoundError(f"dataset {dataset!r} has {problem} {wanted!r}; the latest are: {listed}")

    @staticmethod
    def folder(dataset: str) -> str:
        return f"{VERSIONS}/{dataset}"


def _moment(text: str) -> datetime | None:
    """The last moment that a date or time names, or None where the text is no date."""
    if "-" not in text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment + timedelta(days=1, microseconds=-1) if len(text) == len("2026-03-01") else moment
