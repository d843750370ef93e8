"""Control tokens that a tokenizer lacks are added after its own; files without a model type are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from support.resolved_tokenizers import exported, resolve
from support.small_tokenizers import SaveTokenizer, byte_level
from tokenloom.errors import ConfigError
from tokenloom.resources.tokenizers import TOKENIZER
from tokenloom.resources.tokenizers.tokenizer_json import vocab_size

MORE = ["<|turn|>", "<|done|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: SaveTokenizer) -> Path:
    return save_tokenizer(byte_level(), tmp_path_factory.mktemp("tokenizer"), eos_token="</s>")


def test_tokens_that_the_tokenizer_lacks_get_the_next_ids(folder: Path, tmp_path: Path) -> None:
    bare, spec = resolve(folder), resolve(folder, special_tokens={"additional": ["</s>", *MORE], "eos": MORE[1]})
    before, after = (Tokenizer.from_str(each.files[TOKENIZER].decode()) for each in (bare, spec))
    size = vocab_size(bare.files[TOKENIZER])
    assert [after.token_to_id(token) for token in MORE] == [size, size + 1]
    assert vocab_size(spec.files[TOKENIZER]) == size + 2
    assert {**before.get_vocab(), MORE[0]: size, MORE[1]: size + 1} == after.get_vocab()
    assert (bare.lacked, spec.lacked) == ((), tuple(MORE))
    assert {*MORE, "</s>"} <= set(spec.control) and spec.eos == MORE[1]
    own = exported(spec, tmp_path / "published")
    text = f"{MORE[0]}user one{MORE[1]}"
    assert own.decode(own.encode(text)) == text and own.encode(text)[0] == size
    assert own.eos_token_id == size + 1


def test_tokens_that_the_tokenizer_has_change_nothing(folder: Path) -> None:
    assert resolve(folder, special_tokens={"additional": ["<|im_end|>"]}).files == resolve(folder).files


def test_a_special_token_that_does_not_exist_says_how_to_add_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"special_tokens\.eos.*<\|done\|>.*special_tokens\.additional"):
        resolve(folder, special_tokens={"eos": MORE[1]})


def test_a_tokenizer_json_without_a_model_type_is_read(folder: Path, tmp_path: Path) -> None:
    parsed = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    del parsed["model"]["type"]
    (tmp_path / TOKENIZER).write_text(json.dumps(parsed), encoding="utf-8")
    spec = resolve(tmp_path / TOKENIZER)
    assert json.loads(spec.files[TOKENIZER])["model"]["type"] == "BPE"
    own, original = (Tokenizer.from_str(each) for each in (spec.files[TOKENIZER].decode(), byte_level().to_str()))
    for text in ("the quick brown fox", "Köln <|im_end|>\n 12"):
        assert own.encode(text).ids == original.encode(text).ids
