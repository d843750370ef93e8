"""A build cache for data: content-named objects, keyed actions, manifests, published atomically."""

from tokenloom.resources.store.actions import Action, KeyParts
from tokenloom.resources.store.artifact_store import ArtifactStore, Missed, default_store
from tokenloom.resources.store.manifest import Manifest, ManifestChunk
from tokenloom.resources.store.versions import Version

__all__ = ["Action", "ArtifactStore", "KeyParts", "Manifest", "ManifestChunk", "Missed", "Version", "default_store"]
