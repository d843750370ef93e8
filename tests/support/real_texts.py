"""Texts of the real data files: English instructions, an encyclopedia's lines, and many scripts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

SCRIPTS = ("bn", "ja", "ru", "zh")


def texts_of(folder: Path) -> dict[str, list[str]]:
    """The texts of Alpaca, WikiText-2 and the multilingual files, without empty ones."""

    def parsed(name: str) -> list[dict[str, str]]:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    def joined(name: str, *columns: str) -> list[str]:
        return ["\n\n".join(str(row[column]) for column in columns) for row in parsed(name)]

    alpaca = ("instruction", "input", "output")
    wiki = gzip.decompress((folder / "text/wikitext-2/train.txt.gz").read_bytes()).decode()
    squad = json.loads((folder / "multilingual/xquad.ar.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in squad for paragraph in article["paragraphs"]]
    found = {
        "alpaca": joined("instruct/alpaca_data.json", *alpaca),
        "wikitext-2": wiki.splitlines(),
        "alpaca_zh": joined("multilingual/alpaca_zh_demo.json", *alpaca),
        "gemoji": joined("multilingual/gemoji.json", "emoji", "description", "tags"),
        "xquad.ar": [text for one in paragraphs for text in (one["context"], *(qa["question"] for qa in one["qas"]))],
    }
    for script in SCRIPTS:
        lines = (folder / f"multilingual/mgsm_{script}.tsv").read_text(encoding="utf-8")
        found[f"mgsm_{script}"] = lines.splitlines()
    return {name: [text for text in texts if text] for name, texts in found.items()}
