"""The fingerprint of a dataset's source: another one means other content, found without reading what is known.

- Local files: the name and the digest of each. A file whose size, times and inode are those of the last time is not
  read again; its digest is in a record of the store.
- URLs: checksum, ETag or times and size that the server reports; without any of them, the digest of the content.
- Hub datasets: the commit that the revision resolves to.

What a build reads besides the source counts too: evaluations, and small local files with few-shot examples, a chat
template or a tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import open_regular
from tokenloom.errors import SourceError, escaped
from tokenloom.resources.digest import digest_json
from tokenloom.resources.sources.hub import HubDataset, TfdsDataset, resolved_commit
from tokenloom.resources.sources.resolve import DiskDataset, local_path, locate
from tokenloom.resources.sources.shard_index import shards_of
from tokenloom.resources.sources.source_file import BLOCK_BYTES, SourceFile, SourceFiles, companion_files, server_error
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.known_files import FileDigests, file_stamp

TOKENIZER_FILES = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".vocab")
STATED = ("ETag", "etag", "Content-MD5", "Digest", "md5Hash", "checksum", "Last-Modified", "LastModified", "mtime")
"""What file systems report about the content of a file; the first one that is there is used."""


@dataclass(frozen=True)
class SourceState:
    """What is known of a source now.

    Args:
        fingerprint: digest of its content.
        files, bytes: number of its files and their size; None if unknown.
        modified: time of the latest change of a local file, in seconds since 1970.
        commit: of a hub dataset.
    """

    fingerprint: str
    files: int | None = None
    bytes: int | None = None
    modified: float | None = None
    commit: str | None = None


def source_state(config: PipelineConfig, store: ArtifactStore) -> SourceState:
    """Return the state of a dataset's source. Writes to the store what need not be read again.

    Raises:
        ConfigError: the source does not exist.
        SourceError: it cannot be read.
        SourceUnavailableError: a hub or server did not respond.
    """
    state, read = _state(config, store), []
    for number, each in enumerate(config.decontaminate.evaluations if config.decontaminate else ()):
        named = {"name": f"{config.dataset_name}/{number}", "dataset": each.dataset}  # the name of what is known of it
        read.append(_state(config.model_copy(update=named), store).fingerprint)
    return replace(state, fingerprint=digest_json([state.fingerprint, read])) if read else state


def _state(config: PipelineConfig, store: ArtifactStore) -> SourceState:
    source = locate(config)
    beside = [*_files_beside(config)]
    if isinstance(source, HubDataset):
        commit = resolved_commit(config, source)
        return SourceState(digest_json([commit, _local_digests(store, config, beside)]), commit=commit)
    if isinstance(source, TfdsDataset) and source.folder is None:
        return SourceState(digest_json([source.name, _local_digests(store, config, beside)]))
    splits = list[str]()
    if isinstance(source, SourceFiles):
        files = [each for file in source.files for each in (file, *companion_files(file))]
        files += [shard.file for file in source.files for shard in shards_of(file)]
        local = [(file.name, file.path) for file in files if not file.remote]
        remote = [file for file in files if file.remote]
        # moving a file to another split changes what is built, and no digest
        splits = [file.split for file in source.files] if len(source.splits) > 1 or source.splits != ["train"] else []
    else:
        folder = source.path if isinstance(source, DiskDataset) else source.folder
        local, remote = [*_files_below(folder)] if folder else [], []
    with ThreadPoolExecutor(8) as threads:
        stated = [*threads.map(_stated, remote)]
    digests = _local_digests(store, config, [*local, *beside])
    stamps = [stamp for _, path in local if (stamp := file_stamp(path))]
    return SourceState(
        digest_json([digests, [found for found, _ in stated], *([splits] if splits else [])]),
        files=len(local) + len(remote),
        bytes=None
        if any(size is None for _, size in stated)
        else sum(size or 0 for _, size in stated) + sum(stamp[0] for stamp in stamps),
        modified=max((stamp[1] / 1e9 for stamp in stamps), default=None),
    )


def _local_digests(store: ArtifactStore, config: PipelineConfig, files: list[tuple[str, str]]) -> list[list[str]]:
    recorded = FileDigests(store.blobs, [config.dataset_name, config.folder])
    unread = [path for _, path in files if recorded.find(path) is None]
    # before reading: a file that changes meanwhile must be read again the next time
    before = {path: file_stamp(path) for path in unread}
    with ThreadPoolExecutor(8) as threads:
        for path, digest in zip(unread, threads.map(_digest_file, unread), strict=True):
            recorded.note(path, before[path], digest)
    digests = [[name, recorded.digest(path)] for name, path in files]
    recorded.save(path for _, path in files)
    return digests


def _digest_file(path: str) -> str:
    try:
        hasher = blake3(max_threads=blake3.AUTO)
        # not a memory map: truncating a mapped file kills the process
        with open(path, "rb", opener=open_regular) as file:
            while block := file.read(BLOCK_BYTES):
                hasher.update(block)
        return hasher.hexdigest()
    except OSError as error:
        raise SourceError(f"{escaped(Path(path).name)}: cannot be read: {error.strerror}") from error


def _files_beside(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Yield the name and path of local files besides the source that a build reads."""
    named = {
        "few_shot": config.prompt_template.few_shot.source,
        "chat_template": config.tokenizer.chat_template,
        "template": config.prompt_template.template,
        "tokenizer": config.tokenizer.name_or_path,
    }
    for setting, value in named.items():
        if value is None or "\n" in value or "{" in value or len(value) > 1000:
            continue
        path = local_path(config, value)
        if path is None:
            continue
        if path.is_file():
            yield setting, str(path)
        elif setting == "few_shot":  # a folder of rows
            yield from ((f"{setting}/{name}", file) for name, file in _files_below(path))
        else:
            for file in sorted(path.iterdir()):
                if file.suffix in TOKENIZER_FILES and file.is_file():
                    yield f"{setting}/{file.name}", str(file)


def _files_below(folder: Path) -> Iterator[tuple[str, str]]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)  # noqa: PTH118
            yield escaped(os.path.relpath(path, folder)), path


def _stated(file: SourceFile) -> tuple[list[Any], int | None]:
    """Return what a server reports about a remote file, or its digest if it reports nothing; and its size."""
    import fsspec

    try:
        system, path = fsspec.url_to_fs(file.path)
        info = system.info(path)
    except Exception as error:
        raise server_error(file.name, error, file.path) from None
    size = info.get("size")
    for name in STATED:
        if info.get(name):
            return [file.name, name, str(info[name]), size], size
    hasher = blake3()
    for block in file.blocks():
        hasher.update(block)
    return [file.name, hasher.hexdigest()], size
