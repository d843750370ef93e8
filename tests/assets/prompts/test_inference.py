"""Prompts for inference: a prefix of the row's training text, up to the answer; other templates are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from support.canonical_tables import CHATML, TOOLS, Row, config_of, said, table_of
from support.datasets_on_disk import write_dataset
from support.soak import SOAK, each, some
from support.terminal import run_here
from tokenloom import DataPipeline, PromptEngine
from tokenloom.assets.prompts.inference import prompt_renderer
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, TemplateError
from tokenloom.loaders import collate_prompts
from tokenloom.resources.tokenizers import resolve_tokenizer

TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
BEGUN = f"{{% for m in messages %}}{TURN}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"  # noqa: E501
"""ChatML with its generation prompt."""
THINKS = BEGUN.replace("'\n' + m.content", "'\n' + ('<think></think>' if m.role == 'assistant' else '') + m.content")
COUNTS = "{{ messages | length }} messages\n" + BEGUN
TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": " U1 "},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "U2"},
    {"role": "assistant", "content": "A2"},
]
SHARED = {
    "alpaca", "chatml", "gemma-it", "llama-2-chat", "llama-3-instruct", "mistral-instruct",
    "qwen2.5-instruct", "qwen2_5_training", "zephyr",
}  # fmt: skip
BROKEN = {"alpaca", "chatml", "gemma-it", "llama-3-instruct", "zephyr"}
"""Shared templates whose generation prompt differs from what they write before answers, if white space is kept."""


def engine_of(
    folder: Path, prompt: Row, template: str | None = None, heads: Sequence[pa.Table] = (), **more: Any
) -> Any:
    tokenizer = {"name_or_path": str(folder), **({"chat_template": template} if template else {})}
    config = {"dataset": {"name": "x", **more}, "tokenizer": tokenizer, "prompt_template": prompt}
    return PromptEngine(PipelineConfig.from_mapping(config), heads)


def decoded(folder: Path, table: pa.Table) -> list[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert all(set(mask) <= {1} for mask in table["attention_mask"].to_pylist())
    assert [len(mask) for mask in table["attention_mask"].to_pylist()] == [
        len(i) for i in table["input_ids"].to_pylist()
    ]
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in table["input_ids"].to_pylist()]


def last_answer(made: Row) -> tuple[int, int]:
    """Return the bytes where a conversation's last answer is first trained, and where its own text starts."""
    last = max(span["message"] for span in made["spans"])
    content = next(span["start"] for span in made["spans"] if span["message"] == last)
    return min(span["start"] for span in made["spans"] if span["weight"] > 0), content


def compare(folder: Path, template: str, talks: list[list[Row]], **prompt: Any) -> None:
    """Compare prompts with the training texts of the ordinary renderer, with only the last answer trained."""
    settings = {"format_type": "chat", "train_on": "last", "add_eos": False, **prompt}
    config = config_of(folder, settings, template)
    full = [[said(**message) for message in talk] for talk in talks]
    table = table_of("messages", [{"messages": talk} for talk in full])
    spec = resolve_tokenizer(config)
    whole = renderer(config, {"form": "messages"}, spec)(table).table.to_pylist()
    assert len(whole) == len(talks)
    for given_ in (talks, [talk[:-1] for talk in talks]):
        engine = PromptEngine(config)
        prompts = engine.prompt_only(given_)
        assert engine.rejects.num_rows == 0
        for made, text in zip(whole, decoded(folder, prompts), strict=True):
            trained, content = last_answer(made)
            data = made["text"].encode()
            size = len(text.encode())
            assert data.startswith(text.encode())
            assert size <= content
            assert data[size:trained].strip() == b""


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("name", sorted(SHARED))
def test_a_shared_templates_prompt_is_a_prefix_of_the_training_text(
    real_data: Path, bos_tokenizer_folder: Path, name: str, folded: bool
) -> None:
    """`folded` loads templates as their authors do: without the line breaks and indentation between tags."""
    assert {path.stem for path in (real_data / "chat_templates").glob("*.jinja")} == SHARED
    template = (real_data / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    if folded:
        template = template.replace("    ", "").replace("\n", "")
    talks = [TALK, TALK[1:], TALK[1:3], TALK[:3]]
    if name in BROKEN and not folded:
        with pytest.raises(TemplateError, match=r"row 0: the chat template's generation prompt differs"):
            compare(bos_tokenizer_folder, template, talks)
        return
    compare(bos_tokenizer_folder, template, talks)
    compare(bos_tokenizer_folder, template, talks, system="Y")
    reference = PreTrainedTokenizerFast.from_pretrained(bos_tokenizer_folder)
    config = config_of(bos_tokenizer_folder, {}, template)
    found = decoded(bos_tokenizer_folder, PromptEngine(config).prompt_only(talks))
    for talk, text in zip(talks, found, strict=True):
        expected = reference.apply_chat_template(
            talk[:-1], tokenize=False, add_generation_prompt=True, chat_template=template
        )
        assert text == (expected if "<s>" in str(expected)[:20] else f"<s>{expected}")
        assert text.count("<s>") == (text.count("[INST]") if name == "llama-2-chat" else 1)


def test_a_prompt_without_a_generation_prompt_ends_where_the_answer_starts(tokenizer_folder: Path) -> None:
    assert decoded(
        tokenizer_folder, engine_of(tokenizer_folder, {"format_type": "chat"}, CHATML).prompt_only([TALK])
    ) == [
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U1 <|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
    ]


def test_text_after_the_generation_prompt_is_not_part_of_the_prompt(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder, {"format_type": "chat"}, THINKS)
    for talk in (TALK, TALK[:-1]):
        (prompt,) = decoded(tokenizer_folder, engine.prompt_only([talk]))
        assert prompt.endswith("U2<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_starts_answers_differently_is_refused(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder, {"format_type": "chat"}, COUNTS)
    message = r"row 0: .*differs from the training text .*; make the two agree in tokenizer\.chat_template"
    for talk in (TALK, TALK[:-1]):
        with pytest.raises(TemplateError, match=message):
            engine.prompt_only([talk])


def test_a_prompt_for_an_empty_training_text_is_refused(tokenizer_folder: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content | replace('A', '') }}"
        "{% endgeneration %}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    talk = [{"role": "user", "content": " "}, {"role": "assistant", "content": "A"}]
    engine = engine_of(tokenizer_folder, {"format_type": "chat"}, template)
    with pytest.raises(TemplateError, match=r"row 0: .*differs from the training text .*…'>' and …''"):
        engine.prompt_only([talk])


words = st.text(st.sampled_from("ab é你\n"), max_size=8)
conversations = st.lists(st.tuples(words, words), min_size=1, max_size=3).map(
    lambda turns: [
        {"role": role, "content": text}
        for pair in turns
        for role, text in zip(("user", "assistant"), (pair[0], pair[1].strip() or "x"), strict=True)
    ]
)


@pytest.mark.parametrize("template", some([BEGUN, CHATML, TOOLS, BEGUN.replace("m.content", "m.content | trim")], 2))
@given(talks=st.lists(conversations, min_size=1, max_size=5))
def test_prompts_are_prefixes_for_any_contents(tokenizer_folder: Path, template: str, talks: list[list[Row]]) -> None:
    compare(tokenizer_folder, template, talks)


TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}\n\n###"
JINJA = "{{ instruction }}{% if input %}\n\n{{ input }}{% endif %}\n>> {{ output | trim }}"
FORMATS: dict[str, Row] = {
    "custom": {"template": TEMPLATE, "label_column": "output"},
    "custom, all trained": {"template": TEMPLATE, "label_column": "output", "train_on": "all"},
    "jinja": {"format_type": "jinja", "template": JINJA, "label_column": "output"},
    "marks": {
        "format_type": "jinja",
        "template": JINJA.replace(">> {{", "{% generation %}>> {{") + "{% endgeneration %}",
    },
    "completion": {"format_type": "completion"},
    "chat": {"format_type": "chat"},
}


@pytest.mark.parametrize("few_shot", [0, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_alpaca_prompts_end_where_answers_start(
    real_data: Path, bos_tokenizer_folder: Path, name: str, few_shot: int
) -> None:
    rows = json.loads((real_data / "instruct" / "alpaca_data.json").read_text(encoding="utf-8"))[
        : 2000 if SOAK else 400
    ]
    rows = [row for row in rows if row["output"].strip() == row["output"] and row["output"]]
    prompt = {**FORMATS[name], "few_shot": {"count": few_shot}}
    table = pa.Table.from_pylist(rows)
    tokenizer = {"name_or_path": str(bos_tokenizer_folder), "chat_template": BEGUN, "max_length": 10**6}
    mapping = {} if "template" in prompt else {"prompt": "{instruction}\n{input}", "completion": "output"}
    config = PipelineConfig.from_mapping(
        {"dataset": {"name": "x", "column_mapping": mapping}, "tokenizer": tokenizer, "prompt_template": prompt}
    )
    engine = PromptEngine(config)
    whole = decoded_sequences(bos_tokenizer_folder, engine.encode(table))
    prompts = decoded(bos_tokenizer_folder, engine.prompt_only(table))
    assert engine.rejects.num_rows == 0
    stop = {"chat": "<|im_end|>\n", "custom": "</s>\n\n###", "custom, all trained": "</s>\n\n###"}.get(name, "</s>")
    begin = {"marks": ">> ", "jinja": " "}.get(name, "")
    for row, text, read in zip(rows, whole, prompts, strict=True):
        assert text == f"{read}{begin}{row['output']}{stop}"
        assert read.count("<s>") == 1
        assert read.startswith("<s>")


def decoded_sequences(folder: Path, table: pa.Table) -> list[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in table["input_ids"].to_pylist()]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_need_no_answer(tokenizer_folder: Path, name: str) -> None:
    rows = [{"instruction": f"do {number}", "input": "", "output": "done"} for number in range(3)]
    chat = {"prompt": "instruction", "completion": "output"}
    mapping: Row = {} if "template" in FORMATS[name] else {"column_mapping": chat}
    answered = engine_of(tokenizer_folder, FORMATS[name], BEGUN, **mapping).prompt_only(rows)
    for answer in ({"output": ""}, {"output": None}, {}):
        bare = [{"instruction": row["instruction"], "input": "", **answer} for row in rows]
        heads = [pa.Table.from_pylist(rows)] if name == "marks" else []
        engine = engine_of(tokenizer_folder, FORMATS[name], BEGUN, heads, **mapping)
        assert engine.prompt_only(bare).equals(answered), answer
        assert engine.rejects.num_rows == 0


def test_prompts_contain_examples_but_no_unanswered_rows(tokenizer_folder: Path, tmp_path: Path) -> None:
    shots = tmp_path / "shots.jsonl"
    shots.write_text('{"prompt": "1+1", "completion": "2"}\n{"prompt": "2+2", "completion": "4"}\n')
    begun = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
    engine = engine_of(tokenizer_folder, {"format_type": "chat", "few_shot": {"count": 2, "source": str(shots)}}, BEGUN)
    expected = begun.format("1+1", "2") + begun.format("2+2", "4") + begun.format("3+3", "")[: -len("<|im_end|>\n")]
    assert decoded(tokenizer_folder, engine.prompt_only([[{"role": "user", "content": "3+3"}]])) == [expected]
    for name in ("custom", "chat"):
        prompt = {**FORMATS[name], "few_shot": {"count": 1}}
        mapping: Row = {"column_mapping": {"prompt": "instruction", "completion": "output"}} if name == "chat" else {}
        rows = [
            {"instruction": text, "input": "", "output": said_} for text, said_ in (("a", ""), ("b", ""), ("c", "C"))
        ]
        engine = engine_of(tokenizer_folder, prompt, BEGUN, **mapping)
        found = decoded(tokenizer_folder, engine.prompt_only(rows))
        assert [text.count("C") for text in found] == [1, 1]
        assert engine.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 2, "code": "too_few_examples"}]


def test_preferences_are_prompted_with_their_prompt(tokenizer_folder: Path) -> None:
    config = config_of(tokenizer_folder, {"format_type": "preference"}, BEGUN)
    row = {"prompt": [said("user", "q")], "chosen": [said("assistant", "a")], "rejected": [said("assistant", "b")]}
    out = prompt_renderer(config, {"form": "preference"}, resolve_tokenizer(config))(table_of("preference", [row]))
    assert out.table["text"].to_pylist() == ["<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"]


def test_an_unknown_answer_position_is_refused(tokenizer_folder: Path) -> None:
    for prompt in ({"format_type": "text"}, {"template": "{text}", "train_on": "all"}):
        with pytest.raises(ConfigError, match="the answer's position is unknown"):
            engine_of(tokenizer_folder, prompt).prompt_only([{"text": "a"}])
    with pytest.raises(ConfigError, match="custom takes rows of columns, not conversations"):
        engine_of(tokenizer_folder, FORMATS["custom"], BEGUN).prompt_only([TALK])


def test_a_row_without_text_before_its_answer_is_rejected(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder, {"format_type": "chat"}, BEGUN)
    made = engine.prompt_only([[TALK[2]], TALK[:2]])
    assert made[ROW].to_pylist() == [1]
    assert engine.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 0, "code": "no_prompt"}]


@pytest.mark.parametrize(("padding", "side"), each(["longest", 16, "max_length"], ["left", "right"]))
def test_a_batch_of_prompts_is_padded_and_has_no_labels(tokenizer_folder: Path, side: Any, padding: Any) -> None:
    engine = engine_of(tokenizer_folder, {"format_type": "chat"}, BEGUN)
    prompts = engine.prompt_only([TALK, TALK[1:3], TALK[:2]])
    batch = collate_prompts(prompts, engine.pad_token_id, padding, side, 200)
    assert set(batch) == {"input_ids", "attention_mask"}
    ids = prompts["input_ids"].to_pylist()
    longest = max(map(len, ids))
    width = {"longest": longest, 16: -(-longest // 16) * 16, "max_length": 200}[padding]
    for row, mask, own in zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), ids, strict=True):
        room = width - len(own)
        pad, off = [engine.pad_token_id] * room, [0] * room
        assert row == (pad + own if side == "left" else own + pad)
        assert mask == (off + [1] * len(own) if side == "left" else [1] * len(own) + off)
    with pytest.raises(ValueError, match="more than max_length 3"):
        collate_prompts(prompts, 0, "max_length", max_length=3)


def test_a_trained_tokenizer_is_taken_from_the_build(tmp_path: Path) -> None:
    pipeline = DataPipeline.from_config(write_dataset(tmp_path, 50), store=tmp_path / "store").unwrap()
    engine = pipeline.get_prompt_engine().unwrap()
    rows = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer = pipeline.get_tokenizer().unwrap()
    dataset = pipeline.get_dataset().unwrap()
    prompts = engine.prompt_only([{name: row[name] for name in ("instruction", "input")} for row in rows])
    assert prompts.num_rows == 50
    for number, (row, ids) in enumerate(zip(rows, prompts["input_ids"].to_pylist(), strict=True)):
        assert tokenizer.decode(dataset[number]["input_ids"]) == tokenizer.decode(ids) + row["output"] + "<|endoftext|>"


def test_preview_shows_prompts(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 30)
    shown = ["preview", config, "--inference", "--row", 2]
    assert "tokenizer.train: needs a build" in run_here(*shown, folder=tmp_path).stderr
    assert run_here("build", config, folder=tmp_path).returncode == 0
    done = run_here(*shown, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "small.jsonl").read_text(encoding="utf-8").splitlines()[2])
    assert row["instruction"].split()[1] in done.stdout
    assert "### Response:" in done.stdout
    assert row["output"][-12:] not in done.stdout
    assert "endoftext" not in done.stdout
    assert "0 trained" in done.stdout
