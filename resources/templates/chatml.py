"""Built-in ChatML templates for tokenizers without a chat template; assistant turns are marked as generated."""

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
