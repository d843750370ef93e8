"""The probe of `prompts`: fixed rows, rendered by Arrow's kernels and by Jinja, to detect changes in libraries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.fixed_texts import FIXED_TEXTS
from tokenloom.assets.stage.forms import MESSAGES
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import TokenizerSpec

_CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_OPAQUE = (
    "{%- for m in messages %}{{ '<|im_start|>' }}{{ m.role | upper }}: {{ '%05.2f' | format(loop.index / 3) }} "
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content | trim }}{% endif %}{% endfor %}{{ [1.5, none, 'é'] | tojson }}"
)
_JINJA = (
    "{{ question | trim }} {{ 'été ıß' | title }} {{ ['a<é', none] | tojson }}: "
    "{% generation %}{{ answer }}{% endgeneration %}"
)
_FIELDS = {"form": "fields", "roles": {"question": "question", "answer": "answer"}, "answer": "answer"}
_CUSTOM = {"template": "Q: {question}\n\nA: {answer}\n", "label_column": "answer"}


def probe() -> list[pa.Table]:
    return [
        *_rendered(_CUSTOM, _FIELDS, _fields()),
        *_rendered({"format_type": "jinja", "template": _JINJA}, _FIELDS, _fields()),
        *_rendered({"format_type": "chat", "system": "Be brief."}, {"form": "messages"}, _talks(), _CHAT),
        *_rendered({"format_type": "chat", "train_on": "completions"}, {"form": "messages"}, _talks(), _OPAQUE),
    ]


def _rendered(prompt: dict[str, Any], mapping: dict[str, Any], rows: pa.Table, chat: str | None = None) -> Any:
    config = PipelineConfig.from_mapping({"dataset": {"name": "probe"}, "prompt_template": prompt})
    control = ("<|im_start|>", "<|im_end|>", "</s>", "<s>")
    output = renderer(config, mapping, TokenizerSpec({}, "<s>", "</s>", None, None, control, chat, "<s>"))(rows)
    return output.table, output.rejects


def _fields() -> pa.Table:
    numbers = pa.array(range(len(FIXED_TEXTS)), pa.int32())
    return pa.table({ROW: numbers, "question": pa.array(FIXED_TEXTS), "answer": pa.array(FIXED_TEXTS[::-1])})


def _talks() -> pa.Table:
    talks = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"{number}, {text}"}]
        for number, text in enumerate(FIXED_TEXTS)
    ]
    numbers = pa.array(range(len(talks)), pa.int32())
    return pa.table({ROW: numbers, "messages": pa.array(talks, MESSAGES), "tools": [""] * len(talks)})
