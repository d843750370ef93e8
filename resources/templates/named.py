"""Chat templates that a YAML can name: `tokenizer.chat_template: alpaca`, and ChatML for tokenizers without one.

Each marks its answers, stop token included, with `{% generation %}`. Without `tools` and reasoning, except ChatML.
"""

from __future__ import annotations

IM_START, IM_END = "<|im_start|>", "<|im_end|>"

_TURNS = """\
{% if tools %}
<|im_start|>system
{% if messages and messages[0].role == 'system' %}
{{ messages[0].content }}

{% endif %}
# Tools

You may call functions. Their signatures are within <tools></tools>:
<tools>
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
</tools>

For each call, write a JSON object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{% for message in messages %}
{% if not (tools and loop.first and message.role == 'system') %}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}
{% generation %}\
{% if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}\
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{% if message.content or not loop.first %}{{ '\\n' }}{% endif %}
<tool_call>
{% set given = call.function.arguments %}
{"name": {{ call.function.name | tojson }}, "arguments": {{ given if given is string else given | tojson }}}
</tool_call>
{%- endfor %}
<|im_end|>{% endgeneration %}{{ '\\n' -}}
{% elif message.role == 'tool' %}
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}
{{ message.content }}<|im_end|>
{% endif %}
{% endif %}
{% endfor %}
"""

_PROMPT = """\
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


def chatml(end: str = IM_END) -> str:
    """Return a ChatML template that marks answers, stop token included, with `{% generation %}`.

    It renders tool descriptions, tool calls and tool responses in the style of Hermes, and the reasoning before an
    answer within `<think>`.

    Args:
        end: the text that ends a message.
    """
    return (_TURNS + _PROMPT).replace(IM_END, end)


_ANSWER = "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"


def _sections(user: str, assistant: str, before: str = "\\n\\n") -> str:
    """Return a template that puts a blank line between messages, `before` before answers, and a heading before both."""
    between = "'\\n\\n'" if before == "\\n\\n" else f"'{before}' if message.role == 'assistant' else '\\n\\n'"
    return (
        f"{{% for message in messages %}}{{{{ '' if loop.first else {between} }}}}"
        f"{{% if message.role == 'assistant' %}}{{{{ {assistant!r} }}}}{_ANSWER}"
        "{% elif message.role == 'system' %}{{ message.content }}"
        f"{{% else %}}{{{{ {user!r} }}}}{{{{ message.content }}}}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{before}' + {assistant!r} }}}}{{% endif %}}"
    )


NAMED = {
    "alpaca": _sections("### Instruction:\n", "### Response:\n"),
    "chatml": chatml(),
    "chatml-eos": chatml("{{ eos_token }}"),
    "lines": _sections("", "", "\\n"),
    "llama-2": (
        "{% for message in messages %}{% if message.role == 'assistant' %}"
        "{% generation %}{{ ' ' + message.content + ' ' }}{{ eos_token }}{% endgeneration %}"
        "{% elif message.role == 'system' %}"
        "{{ bos_token }}{{ '[INST] <<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' }}"
        "{% else %}{% if loop.first or messages[loop.index0 - 1].role != 'system' %}"
        "{{ bos_token }}{{ '[INST] ' }}{% endif %}"
        "{{ message.content + ' [/INST]' }}{% endif %}{% endfor %}"
    ),
    "plain": _sections("", ""),
    "qa": _sections("Question:\n", "Answer:\n"),
    "zephyr": (
        "{% for message in messages %}{{ '<|' + message.role + '|>\\n' }}{% if message.role == 'assistant' %}"
        + _ANSWER
        + "{% else %}{{ message.content }}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    ),
}
"""Templates by name."""

DESCRIPTIONS = {
    "alpaca": "instructions: `### Instruction:` before the question, `### Response:` before the answer",
    "chatml": "conversations, tool calls and reasoning: <|im_start|> and <|im_end|> around each message",
    "chatml-eos": "ChatML whose messages end with EOS, for tokenizers that lack <|im_end|>",
    "lines": "a line break before answers, a blank line before other messages, and nothing else; also for texts to "
    "continue",
    "llama-2": "conversations for Llama 2 Chat and Mistral: [INST] … [/INST] around each question",
    "plain": "a blank line between messages, and nothing else",
    "qa": "questions: `Question:` before the question, `Answer:` before the answer",
    "zephyr": "conversations: <|user|>, <|assistant|> or <|system|> on a line before each message",
}
"""What each template is for, in one line."""
