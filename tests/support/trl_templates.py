"""The chat templates of TRL that have a twin with generation marks, and what `transformers` renders with them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

Message = dict[str, Any]

_SPEC = importlib.util.find_spec("trl")
FOLDER = Path(next(iter(_SPEC.submodule_search_locations or ["."]))) / "chat_templates" if _SPEC else Path("no trl")
NAMES = sorted(path.stem.removesuffix("_training") for path in FOLDER.glob("*_training.jinja"))

_EOS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "cohere2": "<|END_OF_TURN_TOKEN|>",
    "deepseek_r1_distill": "<｜end▁of▁sentence｜>",
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "diffusion_gemma": "<turn|>",
    "gemma": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
    "glm4moe": "<|endoftext|>",
    "gptoss": "<|return|>",
    "idefics3": "<end_of_utterance>",
    "llama3": "<|eot_id|>",
    "llava_next": "</s>",
    "muse_glimmer": "<|eot|>",
    "phi3": "<|endoftext|>",
    "phi3_5": "<|endoftext|>",
    "smolvlm": "<end_of_utterance>",
}
"""The token on which generation stops; `<|im_end|>` for all others."""

_CONTROL = re.compile(
    r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>|</?s>|<(?:start|end)_of_[a-z]+>|<\|[a-z_]+>|<[a-z_]+\|>|<\|\"\|>|</?think>"
    r"|</?tool_call>|\[gMASK\]|<sop>|\[/?INST\]"
)


@dataclass(frozen=True)
class Twins:
    """A chat template of TRL with its twin."""

    name: str

    @cached_property
    def plain(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")

    @cached_property
    def marked(self) -> str:
        return (FOLDER / f"{self.name}_training.jinja").read_text(encoding="utf-8")

    @cached_property
    def eos(self) -> str:
        return _EOS.get(self.name, "<|im_end|>")

    @cached_property
    def tokens(self) -> dict[str, str]:
        return {"bos_token": "<bos>" if self.name.startswith("gemma") else "<s>", "eos_token": self.eos}

    @cached_property
    def control(self) -> tuple[str, ...]:
        found = {*_CONTROL.findall(self.plain), *self.tokens.values()}
        return tuple(sorted(found, key=lambda token: (-len(token), token)))

    @cached_property
    def date(self) -> str:
        """Today in the format that the template asks for."""
        form = re.search(r"strftime_now\(['\"](.*?)['\"]\)", self.plain)
        return datetime.now().strftime(form[1] if form else "%d %b %Y")

    def text(self, messages: list[Message], tools: Any, prompted: bool = False, **variables: Any) -> str:
        """Return what the plain template writes; raises what it raises."""
        return self._rendered(self.plain, messages, tools, add_generation_prompt=prompted, **variables)[0][0]

    def generated(self, messages: list[Message], tools: Any) -> tuple[str, list[str]]:
        """Return the text of the twin, and the maximal parts within its generation marks."""
        texts, marks = self._rendered(self.marked, messages, tools, return_assistant_tokens_mask=True)
        parts, end = [], -1
        for start, stop in marks[0]:
            if start < stop:
                parts[len(parts) - (start == end) :] = [(parts[-1] if start == end else "") + texts[0][start:stop]]
                end = stop
        return texts[0], parts

    def _rendered(self, template: str, messages: list[Message], tools: Any, **options: Any) -> Any:
        given: dict[str, Any] = {**options, **self.tokens}
        return render_jinja_template([messages], tools=tools, chat_template=template, **given)
