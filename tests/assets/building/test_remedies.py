"""What a build says of rejected rows names the setting that mends them, and the mended build takes the rows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.paths import ROOT
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import STAGES, stage_named
from tokenloom.assets.stage.definition import explained
from tokenloom.assets.stage.names import DECONTAMINATE, DEDUP, MEDIA, RAW
from tokenloom.assets.stage.rejects import ABANDONED, NO_CONTEXT, RECORDS
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError, TokenloomError
from tokenloom.resources.store import ArtifactStore

REMEDIES = {stage: remedies for stage in STAGES if (remedies := stage_named(stage).remedies)}
TALK = [{"role": "user", "content": "Name a river."}, {"role": "assistant", "content": "The Elbe. " * 4}]
TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {}}}
TRAINED = {"train": {"vocab_size": 300}, "special_tokens": {"eos": "</s>", "pad": "<pad>"}}
CODE_OF = {"ShapeError": 0, "Unfit": 0, "Problem": 1, "empty_text": 1, "empty_prompt": 1, "reject_rows": 2, "refuse": 1}
CODE_OF |= {"UnfitSessionError": 0, "UnusableImage": 0, "ImageProblem": 0}
"""Calls with a reject code, and which argument it is."""


def codes_in(stage: str) -> Iterator[str]:
    """Yield the codes that a stage's source gives as literals."""
    folders = [ROOT / "assets" / stage, *([ROOT / "resources" / "images"] if stage == MEDIA else [])]
    for path in chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(call, "func", None), "id", "")
            if isinstance(call, ast.Call) and len(call.args) > (at := CODE_OF.get(name, len(call.args))):
                found = [node.value for node in ast.walk(call.args[at]) if isinstance(node, ast.Constant)]
                yield from (
                    code for code in found if isinstance(code, str) and re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", code)
                )


@pytest.mark.parametrize("stage", [stage for stage in REMEDIES if stage not in (DECONTAMINATE, DEDUP)])
def test_every_code_of_a_stage_has_a_remedy(stage: str) -> None:
    found = set(codes_in(stage))
    assert found
    assert found <= REMEDIES[stage].keys()


def test_every_record_has_a_remedy() -> None:
    of_sessions = {ABANDONED, NO_CONTEXT}
    assert {*REMEDIES[DECONTAMINATE], *REMEDIES[DEDUP], *of_sessions} == {*RECORDS.to_pylist()}
    assert of_sessions <= REMEDIES[RAW].keys()


def test_a_remedy_names_settings_that_exist_and_follows_a_message_without_one() -> None:
    pages = (ROOT / "docs" / "configuration").glob("*.md")
    configuration = "".join(page.read_text(encoding="utf-8") for page in pages)
    for remedy in (remedy for remedies in REMEDIES.values() for remedy in remedies.values()):
        for setting in re.findall(
            r"\b(?:dataset|tokenizer|prompt_template|length|validation|decontaminate)\.[\w.]+", remedy
        ):
            assert f"`{setting}`" in configuration, remedy
    assert explained("sequences", "too_long", "5 tokens").startswith("5 tokens; raise tokenizer.max_length")
    assert explained("sequences", "too_long", "5 tokens; use fewer") == "5 tokens; use fewer"
    assert explained("sequences", "not a code", "5 tokens") == "5 tokens"


def built(folder: Path, row: dict[str, Any], **settings: Any) -> Build:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    config = {"dataset": {"name": "rows.jsonl"}, **settings}
    (folder / "rows.yaml").write_text(yaml.safe_dump(config))
    build = Build(PipelineConfig.from_file(folder / "rows.yaml"), ArtifactStore(folder / "store"))
    list(build.run_all())
    return build


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = {
    "tools_ignored": (
        {"messages": TALK, "tools": [TOOL]},
        {"tokenizer": {**TRAINED, "chat_template": "alpaca"}},
        "tokenizer.chat_template",
        {"tokenizer": {**TRAINED, "chat_template": "chatml"}},
    ),
    "answer_cut_off": (
        {"messages": TALK},
        {"tokenizer": {**TRAINED, "chat_template": "qa", "max_length": 8}, "length": {"strategy": "truncate_right"}},
        "tokenizer.max_length",
        {"tokenizer": {**TRAINED, "chat_template": "qa", "max_length": 512}, "length": {"strategy": "truncate_right"}},
    ),
    "template_refused": (
        {"messages": TALK},
        {"tokenizer": {**TRAINED, "chat_template": "{{ raise_exception('no ' + messages[0].role) }}"}},
        "chatml (`tokenloom templates`)",
        {"tokenizer": {**TRAINED, "chat_template": "chatml"}},
    ),
    "content_dropped": (
        {"messages": [{"role": "system", "content": "Be brief."}, *TALK]},
        {
            "tokenizer": {
                **TRAINED,
                "chat_template": "{% for m in messages %}{% if m.role != 'system' %}{{ m.content + eos_token }}"
                "{% endif %}{% endfor %}",
            }
        },
        "chatml (`tokenloom templates`)",
        {"tokenizer": {**TRAINED, "chat_template": "chatml"}},
    ),
}
"""By code: a row, settings that reject it, what the message names, and settings as it says."""


@pytest.mark.parametrize("code", CASES)
def test_a_build_names_the_remedy_and_the_remedy_works(tmp_path: Path, code: str) -> None:
    row, wrong, named, right = CASES[code]
    with pytest.raises(DataValidationError) as refused:
        built(tmp_path / "wrong", row, **wrong)
    assert re.search(rf"3 × {code}\b.*; e\.g\. ", str(refused.value))
    assert named in str(refused.value)
    assert built(tmp_path / "right", row, **right).manifest("sequences").total("rows_out") > 0


def test_conversations_without_a_chat_template_name_a_built_in_one(tmp_path: Path) -> None:
    with pytest.raises(TokenloomError, match=r"\.yaml:\d+: tokenizer.chat_template: .*chatml .`tokenloom templates`"):
        built(tmp_path, {"messages": TALK}, tokenizer=TRAINED)
