"""Print a sample of the text that users read, or count phrases that plain English avoids.

python scripts/sample_text.py --count 50 --seed 3    50 docstrings, messages and paragraphs, each with its place
python scripts/sample_text.py --dialect              phrases to replace, most frequent first
python scripts/sample_text.py --dialect --list behind    every place that matches patterns with "behind" in their name
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = ("tokenloom", "assets", "loaders", "resources")
GENERATED = ("docs/api/", "docs/configuration/", "docs/prepare/conformance.md", "docs/prepare/datasets.md")
STORED = tuple(f"assets/schema/{path}" for path in ("doubts.py", "formats.py"))
"""Modules whose texts are stored as facts; rewording them would change cache keys."""
WORDS = re.compile(r"[A-Za-z']{2,}")
MESSAGE_WORDS = 4
"""Strings in code with fewer words are names and formats rather than messages."""

DIALECT = {
    "is no …: is not a": r"(?<!\bthere )\b(?:is|are|was|were|be) no (?!longer\b|more\b|less\b)",
    "there is no: no … found": r"(?:^|[.;:,] |\b(?:and|but|so) )there (?:is|are) (?:no|none)\b",
    "told, tells: reports, raises": r"\b(?:told|tells?|telling)\b(?! (?:\w+ ){0,3}apart\b)",
    "says (of a program): reports": (
        r"(?:`|\b(?:build|command|loader|program|stage|store|tokenloom|certificate|column|content|digest|explanation|hash))"
        r" (?:says?|said)\b"
    ),
    "stands, stood: is, comes": r"\b(?:stands?|stood|standing)\b(?! for\b)",
    "behind: after": r"\bbehind\b",
    "the begin: the start": r"\b(?:the|a|its|their|each|one) begin\b|\bbegins that\b",
    "anew, once more: again": r"\banew\b|\bonce more\b",
    "held against: compared with": r"\bheld (?:against|to)\b|\bholds? against\b",
    "sought: looked up": r"\b(?:sought|seeks)\b",
    "found out, finds out: determined": r"\b(?:found|finds?) out\b",
    "left out, leaves out: omitted": r"\b(?:left|leaves?|leaving) out\b",
    "set aside: rejected": r"\bsets? aside\b",
    "of one's own: custom": r"\bof (?:one's|its|their|his|your|our) own\b(?! \w)",
    "a share: a fraction": r"\b(?:a|which|what) share\b",
    "so many, so much: N": r"\bso (?:many|much|few)\b(?! (?:that|as)\b)",
    "one a core: one per core": r"\bone an? (?:core|stage|row|chunk|file|rank|step|process|thread|module|line)\b",
    "let go, goes (of rows): dropped": r"\b(?:lets?|letting) go\b|\bor goes\b|\bgoes,",
    "whatever the: for any": r"\bwhatever (?:the|its|their|number)\b",
    "as it stands, as it is: unchanged": (
        r"\bas (?:it|they) (?:stands?|stood|is|are|was|were)\b(?! (?:\w+ed|built|read|written)\b)"
    ),
    "is not to be had: is not available": r"\bto be had\b",
    "brings, brought: includes": r"\b(?:brings?|brought)\b(?! together\b)",
    "makes (of a build): builds": r"\b(?:build|stage|run|dataset|pipeline)s? makes?\b",
    "may (possibility): can": r"\bmay\b(?! \d{4}\b| call functions\b)",
    "beside(s): next to": r"\bbesides?\b",
    "alike: both": r"\balike\b",
    "untold: unreported": r"\buntold\b",
    "goes on, gone on: continues": r"\b(?:goes?|gone|going|went) on\b",
    "what … is: relative clause as subject": (
        r"(?:^|[.;] )(?-i:What) \w+(?: \w+){0,4} (?:is|are|has|have) \w+(?:ed|en|n't|not)\b"
    ),
    "of which, of whom: split the sentence": r"(?<!each )(?<!none )(?<!some )\bof wh(?:ich|om)\b",
    "nothing … but, none but: only": r"\b(?:nothing|none|no one) but\b",
    "have it … again: is … again": r"\bha(?:s|ve) it (?!open\b)\w+",
    "at its place, at its time: in order": r"\bat its (?:place|time)\b",
    "comes to, come of: results in": r"\b(?:comes?|came) (?:to|of) (?!an end\b|a stop\b)\w+",
    "lies, lie (of files): is in": r"\b(?:lies?|lay)\b(?! out\b)",
    "met (of an error): encountered": r"\b(?:is|are|was|were|be) met\b",
}


class Text(NamedTuple):
    path: Path
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def strings(path: Path) -> Iterator[Text]:
    """Docstrings, attribute docstrings, and all other strings of several words: messages, help and descriptions."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values)
            text, least = "".join(map(str, parts)), MESSAGE_WORDS
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text, least = node.value.value, 1
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.count(" ") >= MESSAGE_WORDS - 1
        ):
            text, least = node.value, MESSAGE_WORDS
        else:
            waiting += ast.iter_child_nodes(node)
            continue
        if len(WORDS.findall(text)) >= least:
            yield Text(path, node.lineno, " ".join(text.split()))


def paragraphs(path: Path) -> Iterator[Text]:
    """Paragraphs, list items, table rows and headings of a Markdown file, without its code blocks."""
    prose = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    for block in re.finditer(r"(?:.+(?:\n(?![ ]*[-*|#\d]).+)*)", prose):
        text = " ".join(block[0].split())
        if len(WORDS.findall(text)) >= 3:
            yield Text(path, prose.count("\n", 0, block.start()) + 1, text)


def collect() -> list[Text]:
    """All texts of the package and of its documentation, in the order of their places."""
    code = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    real = {path.resolve() for path in code}
    docs = (page for page in (ROOT / "docs").rglob("*.md") if not str(page.relative_to(ROOT)).startswith(GENERATED))
    pages = [*ROOT.glob("*.md"), *docs]
    found = [text for path in real for text in strings(path)] + [text for page in pages for text in paragraphs(page)]
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="number of texts to print; default: 100")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample; default: 0")
    parser.add_argument("--dialect", action="store_true", help="count phrases to replace instead")
    parser.add_argument("--list", metavar="NAME", help="with --dialect: print every match of patterns with this name")
    arguments = parser.parse_args()
    texts = collect()
    if not arguments.dialect:
        for text in random.Random(arguments.seed).sample(texts, min(arguments.count, len(texts))):
            print(text.place, textwrap.fill(text.text, 110, initial_indent="    ", subsequent_indent="    "), sep="\n")
        return
    plain = [text for text in texts if not str(text.path.relative_to(ROOT)).startswith(STORED)]
    counts: dict[str, int] = {}
    for name, pattern in DIALECT.items():
        hits = [(text, hit) for text in plain for hit in re.finditer(pattern, text.text, re.IGNORECASE)]
        counts[name] = len(hits)
        for text, hit in hits if arguments.list and arguments.list in name else ():
            print(f"{text.place}: {text.text[max(hit.start() - 40, 0) : hit.end() + 40]}")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6}  {name}")
    print(f"{sum(counts.values()):6}  in {len(texts)} texts")


if __name__ == "__main__":
    main()
