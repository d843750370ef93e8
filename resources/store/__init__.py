"""The artifact store: a content-addressed build cache in a folder or a bucket.

Modules, from the bottom up:

- `blobs/`: named bytes in a folder or an S3 bucket.
- `records`: small JSON blobs with a digest.
- `objects`, `cache_key`, `actions`: immutable tables named by their digest, and the result of a stage on one chunk,
  stored under its cache key.
- `manifest`, `versions`: the chunks of a stage's output, and the published states of a dataset.
- `certificates`, `probes`, `known_files`: facts about tokenizer engines, libraries and source files.
- `location`: which store is used where none is named.
- `read_lock`: keeps an open manifest from `gc`.
- `artifact_store`: `ArtifactStore`, which combines these.
- `gc` and `verify`: the commands `tokenloom gc` and `tokenloom verify`.
"""

from tokenloom.resources.store.actions import Action
from tokenloom.resources.store.artifact_store import ArtifactStore, Missed
from tokenloom.resources.store.cache_key import KeyParts
from tokenloom.resources.store.manifest import Manifest
from tokenloom.resources.store.manifest_chunks import ManifestChunk, Run
from tokenloom.resources.store.versions import Version

__all__ = [
    "Action",
    "ArtifactStore",
    "KeyParts",
    "Manifest",
    "ManifestChunk",
    "Missed",
    "Run",
    "Version",
]
