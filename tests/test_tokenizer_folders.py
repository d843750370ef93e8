"""Tokenizer folders: tokens, ids and chat templates against `transformers.AutoTokenizer`, and what is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import byte_level
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_folders import KNOWN, Folder, folders, texts
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import CONFIG, TEMPLATE, TOKENIZER, TokenizerSpec, export_config, resolve_tokenizer

BASE = byte_level(KNOWN, 320)


def resolve(path: Path, **settings: Any) -> TokenizerSpec:
    """What tokenloom makes of a tokenizer's files."""
    tokenizer = {"name_or_path": str(path), **settings}
    return resolve_tokenizer(PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": tokenizer}))


def exported(spec: TokenizerSpec, folder: Path) -> Any:
    """The tokenizer that transformers loads from the folder that tokenloom publishes."""
    folder.mkdir()
    (folder / TOKENIZER).write_bytes(spec.files[TOKENIZER])
    (folder / CONFIG).write_bytes(export_config(spec))
    if spec.chat_template:
        (folder / TEMPLATE).write_text(spec.chat_template, encoding="utf-8")
    return AutoTokenizer.from_pretrained(str(folder))


def added(tokenizer: Any) -> dict[int, str]:
    """Added tokens with their flags, by id."""
    return {id: repr(token) for id, token in tokenizer.added_tokens_decoder.items()}


@given(st.data())
def test_a_folder_is_what_transformers_reads(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder: Folder = data.draw(folders(BASE.get_vocab_size()))
    root = tmp_path_factory.mktemp("folder")
    path = folder.write(root / "in", BASE)
    reference: Any = AutoTokenizer.from_pretrained(str(path))
    spec = resolve(path)
    for read in (Tokenizer.from_str(spec.files[TOKENIZER].decode()), exported(spec, root / "out")):
        assert read.get_vocab() == reference.get_vocab()
        if isinstance(read, Tokenizer):
            found = {id: repr(token) for id, token in read.get_added_tokens_decoder().items()}
        else:
            found = added(read)
            assert read.special_tokens_map == reference.special_tokens_map
            assert set(read.all_special_tokens) == set(reference.all_special_tokens)
            assert read.chat_template == reference.chat_template
        assert found == added(reference)
        for text in data.draw(st.lists(texts, max_size=4)):
            for special in (False, True):
                ids = read.encode(text, add_special_tokens=special)
                assert getattr(ids, "ids", ids) == reference.encode(text, add_special_tokens=special)
    assert spec.tokens() == reference.special_tokens_map
    assert spec.chat_template == reference.chat_template
    begin = reference.encode("a")[:1] if len(reference.encode("a")) > 1 else None
    assert spec.adds_bos == (begin is not None and begin == [reference.bos_token_id])
    assert set(spec.control) >= set(reference.all_special_tokens)
