"""Certificates: the findings about a chat template are what the template was written to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.paths import CHAT_TEMPLATES
from tokenloom.assets.building.build import Build
from tokenloom.assets.dagster.checks import Checked, stage_checks
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.chat_certificate import certificate
from tokenloom.config import PipelineConfig, PromptTemplateConfig
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.templates.jinja import JinjaTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}"
TRIMMED = CHATML.replace("m.content", "m.content | trim")
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "chatml": (
        CHATML,
        {
            "rendered": "by Arrow's kernels",
            "stop": "trained, without EOS </s>",
            "BOS": "none",
            "conversation begun": "not changed by later turns",
            "system message": "kept",
            "generation prompt": "none",
            "tools": "omitted",
            "tool calls": "omitted",
            "reasoning": "omitted",
            "white space around contents": "kept",
            "content None": "refused",
            "date": "not read",
        },
    ),
    "bos": ("{{ bos_token }}" + CHATML, {"BOS": "the template's"}),
    "bos behind": ("\n{{ bos_token }}" + CHATML, {"BOS": "the template's, after other text"}),
    "bos twice": ("{{ bos_token }}{{ bos_token }}" + CHATML, {"BOS": "2 times"}),
    "trimmed": (TRIMMED, {"white space around contents": "trimmed", "rendered": "by Arrow's kernels"}),
    "answers trimmed": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content.strip() + eos_token }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}",
        {"white space around contents": "trimmed in answers", "stop": "trained, ends with EOS"},
    ),
    "last only": (
        "{% for m in messages %}{% if loop.last %}{{ '<s>' }}{% endif %}" + TURN + "{% endfor %}",
        {"conversation begun": "changed by later turns"},
    ),
    "no system": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML,
        {"system message": "refused"},
    ),
    "system dropped": (
        "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}",
        {"system message": "refused"},
    ),
    "looks inside": (
        "{% for m in messages %}{{ '<|im_start|>' + m.content | upper + '<|im_end|>' }}{% endfor %}",
        {"rendered": "by Jinja"},
    ),
    "searches": (
        "{% for m in messages %}{{ '<|im_start|>' + m.content.split('</think>')[-1] + '<|im_end|>' }}{% endfor %}",
        {"rendered": "by Arrow's kernels"},
    ),
    "asks": (
        CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        {"generation prompt": "answers start with it"},
    ),
    "asks otherwise": (
        CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}",
        {"generation prompt": "answers do not start with it"},
    ),
    "refuses to ask": (
        "{% if add_generation_prompt %}{{ raise_exception('no') }}{% endif %}" + CHATML,
        {"generation prompt": "refused"},
    ),
    "hermes": (
        (CHAT_TEMPLATES / "hermes.jinja").read_text(),
        {
            "tools": "kept",
            "tool calls": "trained",
            "reasoning": "omitted",
            "generation prompt": "answers start with it",
        },
    ),
    "untold calls": (
        CHATML.replace("+ '<|im_end|>", "+ ((m.tool_calls or '') | tojson) + '<|im_end|>"),
        {"tools": "omitted", "tool calls": "refused"},
    ),
    "no tools": (
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHATML,
        {"tools": "refused", "tool calls": "omitted"},
    ),
    "thinking": (
        (CHAT_TEMPLATES / "thinking.jinja").read_text(),
        {"reasoning": "kept in the last answer, omitted before", "stop": "trained, without EOS </s>"},
    ),
    "thinking aloud": (
        CHATML.replace("m.content", "(m.reasoning_content or '') + m.content")
        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        {"reasoning": "kept"},
    ),
    "dated": ("{{ strftime_now('%Y') }}" + CHATML, {"date": "read, not frozen", "stop": "refused"}),
    "none": (CHATML.replace("m.content", "(m.content or '')"), {"content None": "written as empty"}),
}


def found_of(template: str, **prompt: Any) -> dict[str, str]:
    settings = PromptTemplateConfig(format_type="chat", **prompt)
    control = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
    findings = certificate(ChatFormat(JinjaTemplate(template), settings, TOKENS, control, None, None))
    assert json.loads(json.dumps(findings)) == findings
    return {finding["name"]: finding["found"] for finding in findings}


@pytest.mark.parametrize("name", CASES)
def test_the_findings_about_a_template_are_right(name: str) -> None:
    template, expected = CASES[name]
    found = found_of(template)
    assert {key: found[key] for key in expected} == expected


def test_a_frozen_date_is_reported() -> None:
    assert found_of(CASES["dated"][0], date_string="2024")["date"] == "read, frozen as 2024"


@pytest.mark.parametrize(
    ("template", "passed", "told"),
    [
        (CHATML, True, "the stop token is trained"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False, "not trained"),
    ],
)
def test_the_dagster_check_reports_whether_stops_are_trained(
    tmp_path: Path, tokenizer_folder: Path, template: str, passed: bool, told: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    config = PipelineConfig.from_mapping(
        {
            "name": "rows",
            "dataset": {"name": str(tmp_path / "rows.jsonl")},
            "tokenizer": {"name_or_path": str(tokenizer_folder), "chat_template": template},
            "prompt_template": {"format_type": "chat", "add_eos": False},
        }
    )
    build = Build(config, ArtifactStore(tmp_path / "store"))
    for _ in build.run_all("prompts"):
        pass
    (check,) = [check for check in stage_checks(config) if check.name == "template"]
    verdict = check.run(Checked(build))
    assert verdict.passed == passed and verdict.warns and told in verdict.description
    assert "certificate" in verdict.metadata
