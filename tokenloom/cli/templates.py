"""`tokenloom templates`: lists the built-in chat templates, or shows one with a conversation that it renders."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json
from tokenloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from tokenloom.assets.prompts.chat import ChatFormat
    from tokenloom.assets.shown_rows.token_runs import TokenRun

FEATURES = ("system message", "tools", "tool calls", "reasoning")
"""Findings of a certificate about what a template can render."""

RENDERED = ("kept", "trained", "rendered")
"""How the findings of what a template renders begin."""

SAMPLE: tuple[dict[str, str], ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a river."},
    {"role": "assistant", "content": "The Elbe."},
    {"role": "user", "content": "Where does it end?"},
    {"role": "assistant", "content": "In the North Sea."},
)
THOUGHT = {"reasoning_content": "It passes Hamburg."}
"""Part of the last answer if the template renders reasoning."""

BOS, EOS = "<s>", "</s>"
"""Special tokens if no tokenizer is named."""


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "templates", "list the built-in chat templates, or show one", run)
    parser.add_argument("name", metavar="NAME", nargs="?", help="template to show (default: list all)")
    text = f"a folder, file or hub id: certify the templates with this tokenizer (default: one with {BOS} and {EOS})"
    parser.add_argument("--tokenizer", metavar="TOKENIZER", help=text)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print a table of the templates, or the text, certificate and a rendered conversation of one."""
    from tokenloom.assets.shown_rows.token_runs import ShownRow
    from tokenloom.cli.tables import finding_table, print_preview, template_table
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.resources.templates.named import NAMED

    if args.name is not None and args.name not in NAMED:
        known = did_you_mean(args.name, NAMED) or f"; the built-in templates are {', '.join(NAMED)}"
        raise ConfigError.at("NAME", f"no built-in chat template {args.name!r}{known}")
    found = [_described(name, args.tokenizer) for name in ([args.name] if args.name else NAMED)]
    if args.json:
        print(json.dumps({"templates": [facts for _, facts in found]}, ensure_ascii=False))
        return 0
    console = open_console()
    if args.name is None:
        console.print(template_table([facts for _, facts in found]), highlight=False)
        say(console, "Show one with: tokenloom templates NAME; use it with: tokenizer.chat_template: NAME")
        return 0
    ((chat, facts),) = found
    sys.stdout.write(f"{facts['template'].rstrip()}\n\n")
    sys.stdout.flush()
    console.print(finding_table(facts["certificate"]))
    for notice in facts["notices"]:
        say(console, f"Notice: {notice}.")
    place = ", ".join(f"{name} {token}" for name, token in chat.tokens.items())
    print_preview(console, args.name, [ShownRow(0, "sample", place, {"": tuple(_sample(chat, facts["renders"]))})])
    return 0


def _described(name: str, tokenizer: str | None) -> tuple[ChatFormat, dict[str, Any]]:
    """Return a template's format, and its facts as `--json` prints them."""
    from tokenloom.assets.prompts.chat_certificate import certificate, notices
    from tokenloom.assets.prompts.render import chat_format
    from tokenloom.config import PipelineConfig
    from tokenloom.resources.templates.named import DESCRIPTIONS, NAMED
    from tokenloom.resources.tokenizers import resolve_tokenizer

    own = {"train": {"vocab_size": 300}, "special_tokens": {"bos": BOS, "eos": EOS}}
    settings = {"name_or_path": tokenizer} if tokenizer else own
    sections = {"tokenizer": {**settings, "chat_template": NAMED[name]}, "prompt_template": {"format_type": "chat"}}
    config = PipelineConfig.from_mapping({"dataset": {"name": "sample.jsonl"}, **sections})
    chat = chat_format(config, resolve_tokenizer(config))
    findings = certificate(chat)
    verdicts = {finding["name"]: finding["found"] for finding in findings}
    renders = {feature: verdicts[feature].startswith(RENDERED) for feature in FEATURES}
    return chat, {
        "name": name,
        "description": DESCRIPTIONS[name],
        "renders": [feature for feature, is_rendered in renders.items() if is_rendered],
        "rejects": [feature for feature, is_rendered in renders.items() if not is_rendered],
        "template": NAMED[name],
        "certificate": findings,
        "notices": notices(findings) if tokenizer else [],
    }


def _sample(chat: ChatFormat, renders: Sequence[str]) -> Iterator[TokenRun]:
    from tokenloom.assets.prompts.chat_certificate import one_conversation
    from tokenloom.assets.shown_rows.token_runs import text_runs

    last = {**SAMPLE[-1], **(THOUGHT if "reasoning" in renders else {})}
    return text_runs(chat.render(one_conversation([*SAMPLE[:-1], last])).table)
