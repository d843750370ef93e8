"""The artifact store: a content-addressed build cache in a folder or a bucket.

Modules, from the bottom up:

- `blobs/`: named bytes in a folder or an S3 bucket.
- `objects`, `actions`: immutable tables named by their digest, and the result of a stage on one chunk, stored under its
  cache key.
- `manifest`, `versions`: the chunks of a stage's output, and the published states of a dataset.
- `known_files`: facts about source files.
- `artifact_store`: `ArtifactStore`, which combines these.
- `gc` and `verify`: the commands `tokenloom gc` and `tokenloom verify`.
"""

from tokenloom.resources.store.actions import Action, KeyParts
from tokenloom.resources.store.artifact_store import ArtifactStore, Missed
from tokenloom.resources.store.manifest import Manifest
from tokenloom.resources.store.manifest_chunks import ManifestChunk, Run
from tokenloom.resources.store.versions import Version

__all__ = ["Action", "ArtifactStore", "KeyParts", "Manifest", "ManifestChunk", "Missed", "Run", "Version"]
