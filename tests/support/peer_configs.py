"""Imports public configurations of other tools, builds them with made rows, and compares with the tools themselves.

    TOKENLOOM_REAL_DATA=data python -m tests.support.peer_configs CONFIGS [--site FOLDER] [--only NAME] [--work FOLDER]

CONFIGS holds YAML files: `a….yaml` of axolotl, `l….yaml` of LLaMA-Factory (with `NAME.dataset_info.json`, or
`data/dataset_info.json`), `t….yaml` of TRL. FOLDER holds the packages of axolotl and LLaMA-Factory. Hub ids are
replaced by files with rows of the declared columns, models by a tokenizer and a chat template of their family.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.peer_tools import prepared
from tests.support.peer_tools.packages import use_packages
from tests.support.soak import REAL_DATA

REAL = REAL_DATA or Path("data")
TOOLS = {"a": "axolotl", "l": "llamafactory", "t": "trl"}
ROWS = 200

FAMILIES = {
    "llama-?3|pt-model|models": (
        "llama-3-instruct",
        "<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>", "<|finetune_right_pad_id|>"),
        "<|begin_of_text|>",
    ),
    "qwen3|smollm": ("", "<|im_end|>", ("<|im_start|>",), None),
    "qwen": ("qwen2.5-instruct", "<|im_end|>", ("<|im_start|>",), None),
    "zephyr|starcoder": ("zephyr", None, (), None),
    "phi-3": ("chatml", None, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), None),
    "mistral": ("mistral-instruct", None, (), "<s>"),
    "": ("chatml", None, ("<|im_start|>", "<|im_end|>"), None),
}
"""Chat template, EOS, control tokens and BOS, by the name of a model."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern that Llama 3 and Qwen split text by, so that line breaks before a text are tokens of their own."""

WORDS = [
    *("the", "river", "bends", "north", "of", "an", "old", "town", "and", "nobody", "knows", "why", "it", "does", "so"),
    *("in", "spring", "—", "naïve?", "Σ", "北京", "42", "foo_bar", "{x}", "<b>"),
]


def texts(random_: random.Random, low: int = 3, high: int = 30) -> str:
    """Return made text: a few sentences, some over several lines."""
    words = [random_.choice(WORDS) for _ in range(random_.randint(low, high))]
    return " ".join(words).replace(" an ", "\n", 1 if random_.random() < 0.3 else 0).strip().capitalize() or "Yes"


def made_rows(columns: Mapping[str, str], seed: int) -> list[dict[str, Any]]:
    """Return rows with columns of the given kinds."""
    random_, rows = random.Random(seed), []
    for number in range(ROWS):
        turns = [("user" if at % 2 == 0 else "assistant", texts(random_)) for at in range(2 * random_.randint(1, 3))]
        system = texts(random_)
        row: dict[str, Any] = {}
        for name, kind in columns.items():
            kind, _, fields = kind.partition(":")
            role, content = fields.split(",")[:2] if fields else ("role", "content")
            names: dict[str, str] = (
                dict(zip(("user", "assistant", "system"), fields.split(",")[2:], strict=False)) if fields else {}
            )
            before = [("system", system)] if number % 4 == 0 and names.get("system") != "-" else []
            said = [{role: names.get(speaker, speaker), content: text} for speaker, text in (*before, *turns)]
            shared = random.Random(seed * 1000 + number)
            ask = [{role: names.get("user", "user"), content: texts(shared)}]
            answer = {role: names.get("assistant", "assistant"), content: texts(random_)}
            row[name] = {
                "text": texts(random_),
                "maybe": texts(random_) if random_.random() < 0.5 else "",
                "long": "\n".join(texts(random_, 20, 60) for _ in range(5)),
                "flag": random_.random() < 0.5,
                "number": number,
                "messages": said,
                "asked": said[:-1],
                "prompt": ask,
                "answer": answer,
                "answers": [answer],
                "dialogue": [*ask, answer],
            }[kind]
        rows.append(row)
    return rows


def columns_of(tool: str, given: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns that a configuration declares for a dataset, by what they hold."""
    if tool == "axolotl":
        kind = str(entry["type"]).partition(":")[0]
        properties = entry.get("message_property_mappings") or {}
        role, content = properties.get("role", "role"), properties.get("content", "content")
        names = "human,gpt,system" if role == "from" else "user,assistant,system"
        fields = f":{role},{content},{names}"
        if kind == "chat_template":
            return {entry.get("field_messages", "messages"): f"messages{fields}"}
        if kind == "chat_template.default":
            answers = {entry.get(f"field_{side}", side): f"answer{fields}" for side in ("chosen", "rejected")}
            return {entry.get("field_messages", "messages"): f"asked{fields}", **answers}
        if kind == "completion":
            return {entry.get("field", "text"): "text"}
        return {"instruction": "text", "input": "maybe", "output": "text"}
    if tool == "llamafactory":
        columns = entry.get("columns") or {"prompt": "instruction", "query": "input", "response": "output"}
        tags = entry.get("tags") or {}
        usual = {"user": "human", "assistant": "gpt", "system": "-" if tags else "system"}
        names = ",".join(tags.get(f"{who}_tag", name) for who, name in usual.items())
        fields = f":{tags.get('role_tag', 'from')},{tags.get('content_tag', 'value')},{names}"
        ranked = entry.get("ranking")
        kinds = {"prompt": "text", "query": "maybe", "response": "text", "kto_tag": "flag", "system": "maybe"}
        kinds |= {"messages": f"asked{fields}" if ranked else f"messages{fields}"}
        shared = entry.get("formatting") in ("sharegpt", "openai")
        kinds |= dict.fromkeys(("chosen", "rejected"), f"answer{fields}" if shared else "text")
        return {column: kinds[name] for name, column in columns.items() if name in kinds}
    if "dataset_prompt_column" in given:
        return {given["dataset_prompt_column"]: "text", "answer": "text"}
    if "imdb" in str(entry.get("id")):
        return {"text": "text", "label": "number"}
    listed = entry.get("columns") or ["messages"]
    kinds = {
        "messages": "messages",
        "prompt": "prompt",
        "completion": "answers",
        "chosen": "dialogue",
        "rejected": "dialogue",
    }
    return {name: kinds.get(name, "text") for name in listed}


def entries_of(tool: str, given: Mapping[str, Any], info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the datasets of a configuration."""
    if tool == "axolotl":
        return [dict(entry) for entry in given["datasets"]]
    if tool == "llamafactory":
        return [info[name.strip()] for name in given["dataset"].split(",")]
    mixture = (given.get("dataset_mixture") or {}).get("datasets")
    return mixture or [{"id": given["dataset_name"]}]


def family(model: str) -> tuple[str, str | None, tuple[str, ...], str | None]:
    """Return the family of a model, by its name."""
    return next(found for pattern, found in FAMILIES.items() if re.search(pattern, model.lower()))


def model_folder(model: str, template: bool, folder: Path, own: str | None = None) -> Path:
    """Write Phi-2's tokenizer with the control tokens and the chat template of a model's family.

    Args:
        own: the model's chat template, where axolotl has a copy of it.
    """
    name, eos, more, bos = family(model)
    tokenizer = prepared.tokenizer_of(REAL / "tokenizers" / "phi-2")
    tokens: dict[str, Any] = {"additional_special_tokens": list(more)} if more else {}
    tokens |= {"eos_token": eos} if eos else {}
    tokens |= {"bos_token": bos} if bos else {}
    tokenizer.add_special_tokens(tokens)
    if template and not name:
        tokenizer.chat_template = CHATML
    elif template:
        text = (REAL / "chat_templates" / f"{name}.jinja").read_text()  # laid out over lines, which are not part of it
        tokenizer.chat_template = text if name.startswith("qwen") else text.replace("    ", "").replace("\n", "")
    if own:
        tokenizer.chat_template = own
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    if eos:
        path = folder / "tokenizer.json"
        read = json.loads(path.read_text())
        split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
        bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        read["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_]}
        path.write_text(json.dumps(read))
        path = folder / "tokenizer_config.json"  # other classes replace the pattern
        path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def theirs(
    tool: str, given: Mapping[str, Any], entry: Mapping[str, Any], rows: prepared.Rows, folder: Path
) -> prepared.Prepared:
    """Return what the tool itself makes of rows."""
    tokenizer = prepared.tokenizer_of(folder)
    if tool == "axolotl":
        return prepared.by_axolotl(given, entry, rows, tokenizer)
    if tool == "llamafactory":
        return prepared.by_llamafactory(given, entry, rows, tokenizer)
    if given.get("chat_template"):
        tokenizer.chat_template = given["chat_template"]
    if given.get("eos_token"):
        tokenizer.eos_token = given["eos_token"]
    if "num_generations" in given or "reward_funcs" in given or "dataset_prompt_column" in given:
        return prepared.prompts_by_trl(given, rows, tokenizer)
    if "beta" in given:
        return prepared.by_trl_pairs(rows, tokenizer, given.get("max_length", 1024))
    return prepared.by_trl(given, rows, tokenizer)


def ours(path: Path, store: Path) -> prepared.Prepared:
    """Return the rows of all splits of a dataset that is built without packing."""
    from tokenloom import DataPipeline

    found: prepared.Prepared = []
    pipeline = DataPipeline.from_config(path, store=store).unwrap()
    settings = yaml.safe_load(path.read_text())["dataset"]
    for split in [*settings["splits"], *(["validation"] if settings.get("val_split") else [])]:
        opened = pipeline.get_dataset(split).unwrap()
        for row in map(opened.__getitem__, range(len(opened))):
            sides = ("chosen_", "rejected_") if "chosen_input_ids" in row else ("",)
            names = [f"{side}{name}" for side in sides for name in ("input_ids", "labels") if f"{side}{name}" in row]
            found.append(tuple(tuple(map(int, row[name])) for name in names))
    return found


def check(path: Path, work: Path) -> Iterator[str]:
    """Import one configuration, build it, and yield a line for each of its datasets."""
    from tokenloom.cli.main import main

    tool, out = TOOLS[path.stem[0]], work / path.stem
    given = yaml.safe_load(path.read_text())
    info_path = next(
        (
            each
            for each in (path.with_suffix(".dataset_info.json"), path.parent / "data/dataset_info.json")
            if each.exists()
        ),
        None,
    )
    info = json.loads(info_path.read_text()) if info_path and tool == "llamafactory" else {}
    command = ["import", str(path), "--from", tool, "--out", f"{out}/", "--json"]
    command += ["--dataset-info", str(info_path)] if info else []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(command)
    if code:
        yield f"{path.stem}: refused: {errors.getvalue().strip()}"
        return
    files = [Path(each) for each in json.loads(printed.getvalue())["files"]]
    model = given.get("base_model") or given["model_name_or_path"]
    has_own = bool(given.get("chat_template")) and tool == "trl"
    own = (
        prepared.axolotl_template(given["chat_template"])
        if family(model) == FAMILIES[""] and tool == "axolotl" and given.get("chat_template")
        else None
    )
    folder = model_folder(model, not has_own, out / "model", own)
    mixtures = [file for file in files if "mixture" in yaml.safe_load(file.read_text())]
    for number, (file, entry) in enumerate(
        zip([f for f in files if f not in mixtures], entries_of(tool, given, info), strict=True)
    ):
        settings = yaml.safe_load(file.read_text())
        rows = made_rows(columns_of(tool, given, entry), number)
        split = settings["dataset"].get("splits", ["train"])[0]
        named = isinstance(settings["dataset"]["name"], dict)
        data = out / "data" / file.stem
        (data / "data").mkdir(parents=True)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (data / "data" / f"{split}-00000-of-00001.jsonl").write_text(lines)
        settings["dataset"] |= {"name": {"train": f"{data}/data/*.jsonl"} if named else str(data), "splits": [split]}
        for name in ("config", "revision", "format", "fraction"):
            settings["dataset"].pop(name, None)
        settings["tokenizer"].pop("processor", None)
        settings["tokenizer"]["name_or_path"] = str(folder)
        file.write_text(yaml.safe_dump(settings))
        plain = {**settings, "name": "plain", "length": {**settings["length"], "packing": "none"}}
        plain.pop("dedup", None)
        (out / f"{file.stem}-plain.yml").write_text(yaml.safe_dump(plain))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = main(["build", str(file), "--store", str(out / "store")])
        if code:
            yield f"{path.stem} {file.stem}: does not build: {errors.getvalue().strip().splitlines()[-1]}"
            continue
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                wanted = theirs(tool, given, entry, rows, folder)
        except Exception as error:  # the tool refuses its own file
            yield f"{path.stem} {file.stem}: built; {tool} fails: {type(error).__name__}: {str(error)[:150]}"
            continue
        found = ours(out / f"{file.stem}-plain.yml", out / "store")
        yield f"{path.stem} {file.stem}: built; {compared(wanted, found, folder)}"
    for mixture in mixtures:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = main(["build", str(mixture), "--store", str(out / "store")])
        reason = f"does not build: {errors.getvalue().strip().splitlines()[-1]}" if code else "built"
        yield f"{path.stem} mixture: {reason}"


def compared(wanted: prepared.Prepared, found: prepared.Prepared, folder: Path) -> str:
    """Return how many rows are equal, and the first that differs."""
    left, right = Counter(wanted), Counter(found)
    equal = (left & right).total()
    text = f"{equal} of {len(wanted)} rows equal ({len(found)} here)"
    if equal == len(wanted) == len(found):
        return text
    tokenizer = prepared.tokenizer_of(folder)
    by_ids = {row[0::2]: row for row in found}
    pairs = [(row, by_ids[row[0::2]]) for row in left - right if row[0::2] in by_ids]
    seen = Counter(difference(*pair, tokenizer) for pair in pairs)
    text = f"{text}, {len(pairs)} with equal ids"
    for what, count in seen.most_common(3):
        text += f"; {count}: {what}"
    if len(pairs) < (left - right).total():
        theirs_ = next(row for row in left - right if row[0::2] not in by_ids)
        ours_ = next(iter(right - left), theirs_)
        text += f"; theirs {tokenizer.decode(theirs_[0])!r}; ours {tokenizer.decode(ours_[0])!r}"
    return text


def difference(wanted: tuple[tuple[int, ...], ...], found: tuple[tuple[int, ...], ...], tokenizer: Any) -> str:
    """Return which tokens only one of two rows with equal ids trains."""
    only: dict[str, list[int]] = {"theirs": [], "ours": []}
    for side in range(1, len(wanted), 2):
        for left, right in zip(wanted[side], found[side], strict=True):
            if left != right:
                only["ours" if left == prepared.MASKED else "theirs"].append(max(left, right))
    return ", ".join(f"only {name} train {tokenizer.decode(ids)!r}" for name, ids in only.items() if ids)


def main(arguments: list[str] | None = None) -> None:
    """Check all configurations of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--site")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", type=Path)
    args = parser.parse_args(arguments)
    if args.site:
        use_packages(args.site)
    work = args.work or Path(tempfile.mkdtemp())
    shutil.rmtree(work, ignore_errors=True)
    for path in sorted(args.folder.glob("*.yaml")):
        if path.stem.startswith(args.only):
            for line in check(path, work):
                print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
