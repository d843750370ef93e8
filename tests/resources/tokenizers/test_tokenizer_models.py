"""SentencePiece models and tiktoken ranks: ids compared with those of the sentencepiece and tiktoken libraries (see
`tests/support/tokenizer_models/make.py`), and the settings that they need."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.paths import TOKENIZER_MODELS
from support.resolved_tokenizers import exported, resolve
from tokenloom.errors import ConfigError
from tokenloom.resources.tokenizers import TOKENIZER, TokenizerSpec
from tokenloom.resources.tokenizers.formats import ENCODINGS, Encoding, parse_ranks, recover_merges, tiktoken_json

EXPECTED: dict[str, Any] = json.loads((TOKENIZER_MODELS / "expected.json").read_text())
TEXTS: list[str] = EXPECTED["texts"]
PATTERNS = ("r50k_base", "cl100k_base", "o200k_base")


def loaded(spec: TokenizerSpec) -> Tokenizer:
    """Return the tokenizer, with control tokens in texts encoded as plain text, as in the libraries."""
    tokenizer = Tokenizer.from_str(spec.files[TOKENIZER].decode())
    tokenizer.encode_special_tokens = True
    return tokenizer


def ids(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


@pytest.mark.parametrize("name", ["bpe", "symbols", "unigram_bytes"])
def test_a_sentencepiece_model_gives_sentencepiece_s_ids(name: str) -> None:
    spec = resolve(TOKENIZER_MODELS / f"{name}.model")
    assert ids(loaded(spec)) == EXPECTED[name]
    assert spec.tokens() == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert not spec.adds_bos and spec.pad is None


def test_a_unigram_model_gives_sentencepiece_s_ids_or_equally_likely_ones() -> None:
    spec = resolve(TOKENIZER_MODELS / "unigram.model")
    tokenizer = loaded(spec)
    scores = [score for _, score in json.loads(spec.files[TOKENIZER])["model"]["vocab"]]
    differ = 0
    for text, found, expected in zip(TEXTS, ids(tokenizer), EXPECTED["unigram"], strict=True):
        differ += found != expected
        assert sum(scores[id] for id in found) == pytest.approx(sum(scores[id] for id in expected), abs=1e-4), text
        assert tokenizer.decode(found, False) == tokenizer.decode(expected, False)
    assert differ <= len(TEXTS) // 20
    assert spec.tokens() == {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@pytest.mark.parametrize("name", ["bpe", "symbols", "unigram", "unigram_bytes"])
def test_plain_text_never_becomes_a_control_token(name: str) -> None:
    spec = resolve(TOKENIZER_MODELS / f"{name}.model")
    tokenizer = loaded(spec)
    control = {tokenizer.token_to_id(token) for token in spec.control} - {tokenizer.token_to_id("<unk>")}
    for token in spec.control:
        for text in (token, f"a{token}b", f" {token} ", token * 3):
            assert not control & set(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("encoding", PATTERNS)
@pytest.mark.parametrize("name", ["trained", "shuffled"])
def test_ranks_give_tiktoken_s_ids(name: str, encoding: str) -> None:
    expected = EXPECTED[f"{name} {encoding}"]
    ranks = parse_ranks((TOKENIZER_MODELS / f"{name}.tiktoken").read_bytes())
    assert ENCODINGS[encoding].pattern == expected["pat_str"]
    content = tiktoken_json(ranks, Encoding(expected["pat_str"], {"<|end|>": len(ranks) + 3}))
    tokenizer = Tokenizer.from_str(content.decode())
    assert ids(tokenizer) == expected["ids"]
    assert tokenizer.token_to_id("<|end|>") == len(ranks) + 3


def by_ranks(text: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Encode by ranks, literally: merge the leftmost of the lowest-ranked pairs until none is left."""
    parts = [text[at : at + 1] for at in range(len(text))]
    while pairs := [(ranks[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]:
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def by_merges(text: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Encode by merges: the same, but only listed pairs are merged."""
    order = {pair: at for at, pair in reversed(list(enumerate(merges)))}
    parts = [text[at : at + 1] for at in range(len(text))]
    while pairs := [(order[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in order]:
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


words = st.text("ab", min_size=2, max_size=6).map(str.encode)


@given(st.lists(words, unique=True, max_size=20), st.lists(st.text("abc", max_size=24).map(str.encode), max_size=10))
def test_recovered_merges_encode_as_the_ranks_do(tokens: list[bytes], texts: list[bytes]) -> None:
    ranks = {token: rank for rank, token in enumerate([b"a", b"b", b"c", *tokens])}
    merges = recover_merges(ranks)
    assert len({left + right for left, right in merges}) == len(merges)
    for text in texts:
        assert by_merges(text, merges) == by_ranks(text, ranks)


def test_the_merges_of_a_real_vocabulary_are_recovered(real_data: Path) -> None:
    model = json.loads((real_data / "tokenizers" / "phi-2" / "tokenizer.json").read_text())["model"]
    listed = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    assert len(listed) == 50_000 and recover_merges(model["vocab"]) == listed


def test_a_known_encoding_is_recognized_by_its_file_name(tmp_path: Path) -> None:
    for encoding, known in ENCODINGS.items():
        lines = [base64.b64encode(bytes([byte])) + b" %d" % byte for byte in range(256)]
        top = min(known.special.values())
        lines += [base64.b64encode(b"xy%d" % rank) + b" %d" % rank for rank in range(256, top)]
        path = tmp_path / f"{encoding}.tiktoken"
        path.write_bytes(b"\n".join(lines))
        spec = resolve(path)
        assert (spec.eos, spec.bos, spec.pad) == ("<|endoftext|>", None, None)
        tokenizer = loaded(spec)
        assert {token: tokenizer.token_to_id(token) for token in known.special} == known.special
        assert tokenizer.get_vocab_size() == max(known.special.values()) + 1


SPECIAL = {
    "content": "<|stop|>",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": True,
}


@pytest.mark.parametrize("file", ["some.tiktoken", "tokenizer.model", "tiktoken.model"])
@pytest.mark.parametrize("whole", [True, False])
def test_settings_next_to_ranks_are_read(tmp_path: Path, file: str, whole: bool) -> None:
    shutil.copy(TOKENIZER_MODELS / "trained.tiktoken", tmp_path / file)
    expected = EXPECTED["trained cl100k_base"]
    config = {"pat_str": expected["pat_str"], "added_tokens_decoder": {"702": SPECIAL}, "eos_token": "<|stop|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    spec = resolve(tmp_path if whole else tmp_path / file)
    assert ids(loaded(spec)) == expected["ids"]
    assert spec.eos == "<|stop|>" and loaded(spec).token_to_id("<|stop|>") == 702


def test_ranks_without_a_split_pattern_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"without a split pattern.*r50k_base.*tokenizer_config\.json.*\"pat_str\""):
        resolve(TOKENIZER_MODELS / "trained.tiktoken")


LLAMA: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "eos_token": "</s>"}


@pytest.mark.parametrize("file", ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"])
def test_settings_next_to_a_sentencepiece_model_are_read(tmp_path: Path, file: str) -> None:
    shutil.copy(TOKENIZER_MODELS / "bpe.model", tmp_path / file)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>", "bos_token": "<s>"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": 700}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}")
    spec = resolve(tmp_path)
    assert ids(loaded(spec)) == EXPECTED["bpe"]
    assert spec.adds_bos and spec.pad == "<pad>" and loaded(spec).token_to_id("<pad>") == 700
    assert spec.chat_template == "{{ bos_token }}"


def test_non_legacy_llama_puts_a_space_only_before_the_whole_text(tmp_path: Path) -> None:
    shutil.copy(TOKENIZER_MODELS / "bpe.model", tmp_path / "tokenizer.model")
    found = {}
    for legacy in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**LLAMA, "legacy": legacy}))
        spec = resolve(tmp_path)
        tokenizer = Tokenizer.from_str(spec.files[TOKENIZER].decode())
        found[legacy] = tokenizer.encode("the</s>the").tokens
    assert found == {True: ["<s>", "▁the", "</s>", "▁the"], False: ["<s>", "▁the", "</s>", "t", "he"]}


def test_t5_appends_eos_and_has_sentinels(tmp_path: Path) -> None:
    shutil.copy(TOKENIZER_MODELS / "unigram.model", tmp_path / "spiece.model")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 10}')
    tokenizer = Tokenizer.from_str(resolve(tmp_path).files[TOKENIZER].decode())
    size = json.loads(tokenizer.to_str())["model"]["vocab"]
    assert [tokenizer.token_to_id(f"<extra_id_{at}>") for at in (9, 0)] == [len(size), len(size) + 9]
    assert tokenizer.encode("the").tokens[-1] == "</s>"


@pytest.mark.parametrize("count", [-1, 10_001, 2.5, "10"])
def test_a_number_of_sentinels_that_t5_cannot_have_is_refused(tmp_path: Path, count: Any) -> None:
    shutil.copy(TOKENIZER_MODELS / "unigram.model", tmp_path / "spiece.model")
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": count}))
    with pytest.raises(ConfigError, match=f"extra_ids must be an integer from 0 to 10,000, got {count}"):
        resolve(tmp_path)


def test_a_class_whose_ids_are_not_the_model_s_is_refused(tmp_path: Path) -> None:
    shutil.copy(TOKENIZER_MODELS / "unigram.model", tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    with pytest.raises(ConfigError, match=r"XLMRobertaTokenizer can differ.*save_pretrained"):
        resolve(tmp_path)


@pytest.mark.parametrize("name", ["bpe.model", "symbols.model", "unigram.model", "trained.tiktoken"])
def test_the_exported_folder_encodes_the_same(tmp_path: Path, name: str) -> None:
    shutil.copy(TOKENIZER_MODELS / name, tmp_path / name)
    pattern = EXPECTED["trained cl100k_base"]["pat_str"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pat_str": pattern}))
    spec = resolve(tmp_path / name, chat_template="{{ messages[0].content }}{{ eos_token }}")
    read = exported(spec, tmp_path / "out")
    plain = Tokenizer.from_str(spec.files[TOKENIZER].decode())
    for text in TEXTS:
        assert read.encode(text) == plain.encode(text).ids
    assert read.special_tokens_map == spec.tokens()
    assert {name: read.convert_tokens_to_ids(token) for name, token in spec.tokens().items()} == {
        name: plain.token_to_id(token) for name, token in spec.tokens().items()
    }
    text = read.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert text == "hello" + (spec.eos or "")
