"""Raw text without a build: text in any language is read back exactly, and a loader over it resumes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from support.array_rows import Dicts, Ids, rows_of
from tokenloom.errors import LoaderStateError, SourceError
from tokenloom.loaders import ArrayDataLoader

MULTILINGUAL = [
    "Rivers carry stones; stones carry time.",
    "Die Straße ist naß, und die Äpfel sind grün.",
    "静かな川の流れ、古い石の記憶。",
    "Тихая река несёт камни к морю.",
    "النهر يحمل الحجارة إلى البحر",
    "नदी पत्थरों को समुद्र तक ले जाती है",
    "강은 돌을 바다로 나른다",
    "👩‍👩‍👧 the family 🌊",
    "e\u0301 and \u00e9 are written differently",
]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(autouse=True)
def no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked up in a store first: use a separate one for the test."""
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))


@pytest.mark.parametrize("kind", ["transformers", "tokenizers", "ids", "dicts"])
@pytest.mark.parametrize("form", ["text", "jsonl", "folder"])
def test_raw_text_of_any_language_comes_back(tmp_path: Path, tokenizer: Any, kind: str, form: str) -> None:
    texts = [f"{text} {number}" for number, text in enumerate(MULTILINGUAL * 4)]
    lines = [json.dumps({"text": text, "lang": "?"}) if form == "jsonl" else text for text in texts]
    path = tmp_path / f"data.{'jsonl' if form == 'jsonl' else 'txt'}"
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    if form == "folder":
        half = len(texts) // 2
        (tmp_path / "de.txt").write_text("\n".join(texts[:half]), encoding="utf-8")
        (tmp_path / "ja.txt").write_text("\n".join(texts[half:]) + "\n", encoding="utf-8")
        (tmp_path / "notes.md").write_text("not read")
        path.unlink()
        path = tmp_path
    backend = tokenizer.backend_tokenizer
    encoders = {"transformers": tokenizer, "tokenizers": backend, "ids": Ids(), "dicts": Dicts()}

    def decoded(ids: list[int]) -> str:
        return "".join(map(chr, ids)) if kind in ("ids", "dicts") else backend.decode(ids, skip_special_tokens=False)

    made = ArrayDataLoader(None, encoders[kind], path, batch_size=5, padding="longest")
    batches = list(made)
    found = list(rows_of(batches))
    assert all(ids == labels for ids, labels in found)
    assert sorted(decoded(ids) for ids, _ in found) == sorted(texts)
    assert [decoded(ids) for ids, _ in found] != texts
    assert [decoded(ids) for ids, _ in rows_of(ArrayDataLoader(None, encoders[kind], path, 5, False))] == texts
    if kind in ("ids", "dicts"):
        assert all((batch["input_ids"][batch["attention_mask"] == 0] == 7).all() for batch in batches)
    places = [row.places[0].rpartition(":") for step in range(len(made)) for row in made.trace(step)]
    read = [Path(file).read_text(encoding="utf-8").split("\n")[int(line) - 1] for file, _, line in places]
    assert [json.loads(line)["text"] if form == "jsonl" else line for line in read] == [
        decoded(ids) for ids, _ in found
    ]


def test_raw_text_resumes_and_is_cut_to_max_length(tmp_path: Path) -> None:
    path = tmp_path / "letters.txt"
    path.write_text("".join(f"{chr(97 + number) * (1 + number)}\n" for number in range(20)))
    config = SimpleNamespace(max_length=6, batch_size=3, seed=1)
    whole = ArrayDataLoader(config, Ids(), path)
    batches = list(whole)
    assert {batch["input_ids"].shape[1] for batch in batches} == {6}
    assert sorted(len(ids) for ids, _ in rows_of(batches)) == sorted(min(1 + number, 6) for number in range(20))
    begun, resumed = ArrayDataLoader(config, Ids(), path), ArrayDataLoader(config, Ids(), path)
    for count, _ in enumerate(begun, 1):
        if count == 4:
            break
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert list(rows_of(resumed)) == list(rows_of(batches[4:]))
    path.write_text(path.read_text().replace("c", "d"))
    with pytest.raises(LoaderStateError, match="data is"):
        ArrayDataLoader(config, Ids(), path).load_state_dict(begun.state_dict())


def test_a_line_that_is_too_long_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenloom.loaders import raw_text

    monkeypatch.setattr(raw_text, "MAX_CHARACTERS", 10)
    (tmp_path / "data.txt").write_text("a" * 9 + "\n" + "b" * 10 + "\n")
    encode: Any = SimpleNamespace(encode=lambda text, **_: [len(text)])
    with pytest.raises(SourceError, match=r"data\.txt:2: the line has more than 10 characters"):
        list(raw_text.tokenized_file(tmp_path / "data.txt", encode))
