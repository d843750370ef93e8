"""Random tokenizer folders, with all files that are used next to a tokenizer.json, in old and new formats."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

NAMES: tuple[str, ...] = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
KNOWN: tuple[str, ...] = ("<s>", "</s>", "<|pad|>", "<|im_end|>")
"""Tokens of the vocabulary."""
NEW: tuple[str, ...] = ("<n0>", "<n1>", "<n2>", "<|new|>", "[NEW]", "<img>")
"""Tokens that are in no vocabulary."""
PLAIN: tuple[str, ...] = ("the", "Ġ", "a")
"""Entries of the vocabulary that are not special."""

contents = st.sampled_from((*KNOWN, *NEW, *PLAIN))


def _flags(content: str, lstrip: bool, rstrip: bool, normalized: bool, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized, "special": special}
    return {"content": content, **flags}


entries = st.builds(_flags, contents, *[st.booleans()] * 4)
typed = entries.map(lambda entry: {"__type": "AddedToken", **entry})
named = st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), contents, typed), max_size=5)
plainly_named = st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), contents), max_size=5)
mapped = st.dictionaries(st.sampled_from(NAMES), st.one_of(contents, entries), max_size=4)
templates = st.sampled_from(["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}{{ eos_token }}"])


@dataclass(frozen=True)
class Folder:
    """Files next to tokenizer.json by name (JSON or text), and the token that a post-processor puts before texts."""

    files: dict[str, Any] = field(default_factory=dict)
    begins: str | None = None

    def write(self, folder: Path, tokenizer: Tokenizer) -> Path:
        folder.mkdir(parents=True)
        if self.begins:
            tokenizer = Tokenizer.from_str(tokenizer.to_str())
            special = [(self.begins, tokenizer.token_to_id(self.begins))]
            tokenizer.post_processor = processors.TemplateProcessing(single=[self.begins, "$A"], special_tokens=special)
        tokenizer.save(str(folder / "tokenizer.json"))
        for name, content in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return folder


@st.composite
def folders(draw: st.DrawFn, vocab_size: int) -> Folder:
    """Draw a folder that transformers can load.

    Args:
        vocab_size: size of the tokenizer's vocabulary; ids of added tokens start there.
    """
    kind = draw(st.sampled_from(["decoder", "legacy", "none"]))
    config: dict[str, Any] = {**draw(named if kind == "decoder" else plainly_named)}
    if (name := draw(st.sampled_from([None, "PreTrainedTokenizerFast", "TokenizersBackend"]))) is not None:
        config["tokenizer_class"] = name
    listed = draw(st.lists(st.sampled_from(NEW), unique=True, max_size=3))
    files: dict[str, Any] = {"tokenizer_config.json": config}
    if kind == "decoder":
        added = [{**draw(entries), "content": content} for content in listed]
        config["added_tokens_decoder"] = {str(vocab_size + at): token for at, token in enumerate(added)}
    elif kind == "legacy":
        files["added_tokens.json"] = {content: vocab_size + at for at, content in enumerate(listed)}
        more = {"additional_special_tokens": draw(st.lists(contents, max_size=3))} if draw(st.booleans()) else {}
        files["special_tokens_map.json"] = {**draw(mapped), **more}
    extra = draw(st.sampled_from([None, "extra_special_tokens", "additional_special_tokens", "own"]))
    if extra == "own":
        config["image_token"] = draw(st.sampled_from(NEW))
    elif extra is not None:
        config[extra] = draw(st.lists(contents, unique=True, max_size=3))
    if draw(st.booleans()):
        config["chat_template"] = draw(templates)
    if draw(st.booleans()):
        files["chat_template.jinja"] = draw(templates)
    if draw(st.booleans()):
        config |= {"add_bos_token": draw(st.booleans()), "add_eos_token": draw(st.booleans())}
    return Folder(files, draw(st.sampled_from([None, "<s>"])))


texts = st.lists(st.one_of(st.sampled_from((*KNOWN, *NEW, *PLAIN, " ", "\n")), st.text(max_size=8)), max_size=8).map(
    "".join
)
