"""What the store keeps about a tokenizer is used only if a build can have written it, else found again."""

from __future__ import annotations

from pathlib import Path

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import write_dataset
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.actions import decode_record, encode_record

DIGESTS = '{"digests": {"tokenizer.json": "' + "a" * 64 + '"}'
WILD = ("", "x", "null", "[]", "{}", "9", DIGESTS + "}", DIGESTS + ', "bos": 9}', DIGESTS + ', "more": 1}', "[" * 9999)


def test_crafted_notes_about_a_tokenizer_change_no_digest(tmp_path: Path) -> None:
    prompt = {"template": "Q: {instruction}\n\nA: {output}", "label_column": "output", "train_on": "completions"}
    config = write_dataset(tmp_path, 80, tokenizer=frozen_tokenizer(tmp_path), prompt_template=prompt)
    first = digests(build(config, tmp_path / "store"))
    store = ArtifactStore(tmp_path / "store")
    kept = [path for kind in ("border", "tokenizer.json") for path in (tmp_path / "store/probes").glob(f"{kind}-*")]
    assert len(kept) == 2
    for wild in WILD:
        for path in kept:
            name = f"probes/{path.name}"
            store.blobs.write(name, encode_record(name, decode_record(name, path.read_bytes()) | {"probe": wild}))
        assert digests(build(config, tmp_path / "store")) == first, wild
