"""examples/train_grpo.py: rewards get the kept column of the row whose prompt was answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.example_scripts import example
from support.small_tokenizers import WriteConfig
from tokenloom import DataPipeline, open_dataset


def test_rewards_read_the_kept_column_of_their_row(
    tmp_path: Path, write_config: WriteConfig, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    rows = [{"prompt": f"What is {number} and {number}?", "answer": str(2 * number)} for number in range(12)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = write_config(
        tmp_path,
        "sums",
        dataset={"name": "sums.jsonl", "keep_columns": ["answer"]},
        tokenizer={"name_or_path": str(tokenizer_folder), "chat_template": "qa", "max_length": 64},
        prompt_template={"format_type": "prompt_only"},
    )
    DataPipeline.from_config(path, tmp_path / "store").unwrap().build().unwrap()
    dataset, script, rewarded = open_dataset("sums", store=tmp_path / "store"), example("train_grpo"), list[str]()

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: object) -> list[float]:
        for prompt, wanted in zip(prompts, answer, strict=True):
            row = next(row for row in rows if row["answer"] == wanted)
            assert row["prompt"] in prompt and prompt.endswith("Answer:\n")
        rewarded.extend(answer)
        return [float(len(text)) for text in completions]

    assert script.answered(["It is 4.", "It is 5."], ["4", "4"]) == [1.0, 0.0]
    monkeypatch.setattr(script, "answered", reward)
    trainer = script.train(script.tiny_model(dataset), dataset, tmp_path / "run", 2)
    assert trainer.state.global_step == 2 and len(rewarded) == 2 * script.GENERATIONS
