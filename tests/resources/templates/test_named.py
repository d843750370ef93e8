"""The chat templates that a YAML can name: their texts, written by hand, and those of the originals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from support.datasets_on_disk import write_dataset
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.templates.named import NAMED
from tokenloom.resources.tokenizers import resolve_tokenizer

SYSTEM, TALK = (
    {"role": "system", "content": "Be brief."},
    [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Elbe."},
        {"role": "user", "content": "Another."},
        {"role": "assistant", "content": "The Rhine."},
    ],
)
WRITTEN = {
    "alpaca": "Be brief.\n\n### Instruction:\nName a river.\n\n### Response:\nThe Elbe.</s>\n\n"
    "### Instruction:\nAnother.\n\n### Response:\nThe Rhine.</s>",
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a river.<|im_end|>\n"
    "<|im_start|>assistant\nThe Elbe.<|im_end|>\n<|im_start|>user\nAnother.<|im_end|>\n"
    "<|im_start|>assistant\nThe Rhine.<|im_end|>\n",
    "chatml-eos": "<|im_start|>system\nBe brief.</s>\n<|im_start|>user\nName a river.</s>\n"
    "<|im_start|>assistant\nThe Elbe.</s>\n<|im_start|>user\nAnother.</s>\n<|im_start|>assistant\nThe Rhine.</s>\n",
    "lines": "Be brief.\n\nName a river.\nThe Elbe.</s>\n\nAnother.\nThe Rhine.</s>",
    "llama-2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nName a river. [/INST] The Elbe. </s>"
    "<s>[INST] Another. [/INST] The Rhine. </s>",
    "plain": "Be brief.\n\nName a river.\n\nThe Elbe.</s>\n\nAnother.\n\nThe Rhine.</s>",
    "qa": "Be brief.\n\nQuestion:\nName a river.\n\nAnswer:\nThe Elbe.</s>\n\n"
    "Question:\nAnother.\n\nAnswer:\nThe Rhine.</s>",
    "zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nName a river.</s>\n<|assistant|>\nThe Elbe.</s>\n"
    "<|user|>\nAnother.</s>\n<|assistant|>\nThe Rhine.</s>\n",
}
TRAINED = {"train": {"vocab_size": 300}, "special_tokens": {"eos": "</s>", "pad": "<pad>"}}
ORIGINALS = {"alpaca": "alpaca", "chatml": "chatml", "llama-2": "llama-2-chat", "zephyr": "zephyr"}


def rendered(template: str, messages: list[dict[str, str]], **given: Any) -> str:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return render_jinja_template([messages], chat_template=template, **tokens, **given)[0][0]


@pytest.mark.parametrize("name", NAMED)
def test_the_text_of_a_conversation(name: str) -> None:
    assert rendered(NAMED[name], [SYSTEM, *TALK]) == WRITTEN[name]


@pytest.mark.parametrize("name", NAMED)
def test_each_answer_and_its_stop_are_marked_and_follow_the_text_that_inference_starts_from(name: str) -> None:
    messages = [SYSTEM, *TALK]
    found: Any = render_jinja_template(
        [messages],
        chat_template=NAMED[name],
        return_assistant_tokens_mask=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    (text,), (spans,) = found
    stop = "<|im_end|>" if name == "chatml" else "</s>"
    marked = [text[start:end] for start, end in spans]
    assert [each.strip().replace(" </s>", "</s>") for each in marked] == [f"The Elbe.{stop}", f"The Rhine.{stop}"]
    for number, (start, _) in zip((2, 4), spans, strict=True):
        assert text[:start] == rendered(NAMED[name], messages[:number], add_generation_prompt=True)


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_text_is_that_of_the_original(real_data: Path, name: str) -> None:
    template = (real_data / "chat_templates" / f"{ORIGINALS[name]}.jinja").read_text(encoding="utf-8")
    template = template.replace("    ", "").replace("\n", "")
    for messages in ([SYSTEM, *TALK], TALK, [SYSTEM, *TALK[:2]]):
        original = rendered(template, messages)
        start = "" if name == "llama-2" else "<s>" if original.startswith("<s>") else ""
        assert start + rendered(NAMED[name], messages).rstrip() == original.rstrip()


def test_a_yaml_names_a_template_unless_a_file_has_the_name(tmp_path: Path) -> None:
    def resolved(name: str) -> str | None:
        config = write_dataset(tmp_path, 10, tokenizer={**TRAINED, "chat_template": name})
        return resolve_tokenizer(PipelineConfig.from_file(config)).chat_template

    assert resolved("alpaca") == NAMED["alpaca"]
    with pytest.raises(ConfigError, match="no such file: alpca; did you mean alpaca"):
        resolved("alpca")
    with pytest.raises(
        ConfigError, match="no such file: xyzzy; the built-in templates are alpaca, chatml, chatml-eos, lines, llama-2"
    ):
        resolved("xyzzy")
    (tmp_path / "alpaca").write_text("{{ messages }}")
    assert resolved("alpaca") == "{{ messages }}"
