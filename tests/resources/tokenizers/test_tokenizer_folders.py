"""Tokenizer folders: tokens, ids and chat templates compared with `transformers.AutoTokenizer`, and exports."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from support.resolved_tokenizers import exported, resolve
from support.small_tokenizers import byte_level
from support.tokenizer_folders import KNOWN, NAMES, Folder, folders, texts
from tokenloom.resources.tokenizers import TOKENIZER, export_config
from tokenloom.resources.tokenizers.conversion import FAMILIES

BASE = byte_level(KNOWN, 320)


def added(tokenizer: Any) -> dict[int, str]:
    """Added tokens with their flags, by id."""
    return {id: repr(token) for id, token in tokenizer.added_tokens_decoder.items()}


@given(st.data())
def test_a_folder_is_read_as_by_transformers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
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
    first = reference.encode("a")[:1] if len(reference.encode("a")) > 1 else None
    assert spec.adds_bos == (first is not None and first == [reference.bos_token_id])
    assert set(spec.control) >= set(reference.all_special_tokens)


def family_defaults(name: str) -> dict[str, str]:
    """Return the default tokens of a tokenizer class of transformers."""
    import transformers

    parameters = inspect.signature(getattr(transformers, name).__init__).parameters
    found = {key: parameter.default for key, parameter in parameters.items() if key.endswith("_token")}
    return {key: str(token) for key, token in found.items() if key in NAMES and isinstance(token, str | AddedToken)}


CLASSES = {
    "gpt2": "GPT2Tokenizer",
    "gptneox": "GPTNeoXTokenizer",
    "codegen": "CodeGenTokenizer",
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "llama": "LlamaTokenizer",
    "t5": "T5Tokenizer",
}


@pytest.mark.parametrize("family", CLASSES)
def test_undeclared_tokens_are_the_defaults_of_the_class(family: str) -> None:
    assert FAMILIES[family] == family_defaults(CLASSES[family])


@pytest.mark.parametrize(
    "file",
    [("config.json", {"model_type": "gpt2"}), ("tokenizer_config.json", {"tokenizer_class": "GPT2TokenizerFast"})],
)
def test_files_without_tokens_use_the_defaults_of_their_class(tmp_path: Path, file: tuple[str, dict[str, str]]) -> None:
    path = Folder({file[0]: file[1]}).write(tmp_path / "gpt2", byte_level(("<|endoftext|>",), 300))
    spec = resolve(path)
    assert (spec.bos, spec.eos, spec.pad) == ("<|endoftext|>", "<|endoftext|>", None)
    assert resolve(path, special_tokens={"pad": "a"}).pad == "a"
    explicit = Folder({file[0]: file[1], "special_tokens_map.json": {"bos_token": None}})
    assert resolve(explicit.write(tmp_path / "none", byte_level(("<|endoftext|>",), 300))).bos is None


def test_chat_templates_in_old_and_new_places_are_found(tmp_path: Path) -> None:
    named = {
        "additional_chat_templates/default.jinja": "{{ 2 }}",
        "additional_chat_templates/tool_use.jinja": "{{ 3 }}",
    }
    old = {"chat_template": [{"name": "tool_use", "template": "{{ 3 }}"}, {"name": "default", "template": "{{ 4 }}"}]}
    kinds: list[dict[str, Any]] = [
        {"chat_template.jinja": "{{ 1 }}", "tokenizer_config.json": old, **named},
        {"tokenizer_config.json": old, **named},
        {"tokenizer_config.json": old, "chat_template.json": {"chat_template": "{{ 5 }}"}},
        {"tokenizer_config.json": {"chat_template": {"default": "{{ 6 }}"}}},
        {"chat_template.json": {"chat_template": "{{ 5 }}"}},
        {},
    ]
    found = [resolve(Folder(files).write(tmp_path / str(at), BASE)).chat_template for at, files in enumerate(kinds)]
    assert found == ["{{ 1 }}", "{{ 2 }}", "{{ 4 }}", "{{ 6 }}", "{{ 5 }}", None]


def test_only_needed_settings_are_exported(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "auto_map": {"AutoTokenizer": ["code.Evil", None]},
        "tokenizer_file": "/etc/passwd",
        "vocab_file": "../../x",
        "name_or_path": "/home/someone",
        "model_max_length": 77,
        "padding_side": "left",
        "image_token": "<|im_end|>",
    }
    spec = resolve(Folder({"tokenizer_config.json": config}).write(tmp_path / "in", BASE))
    assert json.loads(export_config(spec)) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 77,
        "padding_side": "left",
        "image_token": "<|im_end|>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
