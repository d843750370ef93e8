"""Chat templates that a YAML can name: `tokenizer.chat_template: alpaca`.

Each marks its answers, stop token included, with `{% generation %}`. Without `tools` and reasoning, except ChatML.
"""

from __future__ import annotations

from tokenloom.resources.templates.chatml import chatml

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
