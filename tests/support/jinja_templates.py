"""Jinja templates over columns as users write them, each with a twin that has ⟦ and ⟧ around what is trained.

The columns are `q`, `ctx` (can be ""), `answer`, `n` (a number), `tags` (a list of texts) and `meta` (an object).
"""

from __future__ import annotations

PLACED = "Q: {{ q }}\nA: "

TEMPLATES: dict[str, tuple[str, str]] = {
    "filter on the question": ("{{ q|upper }} => {{ answer }}", "{{ q|upper }} => ⟦{{ answer }}⟧"),
    "slice": ("{{ q[:7] }}: {{ answer }}", "{{ q[:7] }}: ⟦{{ answer }}⟧"),
    "split and join": (
        '{{ ctx.split(" ")|join(", ") }}\n{{ answer }}',
        '{{ ctx.split(" ")|join(", ") }}\n⟦{{ answer }}⟧',
    ),
    "capitalize": ("{{ q|capitalize }} {{ answer }}", "{{ q|capitalize }} ⟦{{ answer }}⟧"),
    "length": ("{{ q|length }} characters. {{ answer }}", "{{ q|length }} characters. ⟦{{ answer }}⟧"),
    "loop over words": (
        "{% for word in q.split() %}{{ loop.index }}. {{ word }}\n{% endfor %}{{ answer }}",
        "{% for word in q.split() %}{{ loop.index }}. {{ word }}\n{% endfor %}⟦{{ answer }}⟧",
    ),
    "answer in capitals": (PLACED + "{{ answer|upper }}", PLACED + "⟦{{ answer|upper }}⟧"),
    "answer as JSON": (PLACED + "{{ answer|tojson }}!", PLACED + "⟦{{ answer|tojson }}⟧!"),
    "answer replaced": (
        "{{ q|title }} {{ answer|replace('\n', ' ')|trim }}",
        "{{ q|title }} ⟦{{ answer|replace('\n', ' ')|trim }}⟧",
    ),
    "answer cut": (PLACED + "{{ answer[:20] }}…", PLACED + "⟦{{ answer[:20] }}⟧…"),
    "last line of the answer": (
        PLACED + "{{ answer.split('\n')[-1] }}",
        PLACED + "⟦{{ answer.split('\n')[-1] }}⟧",
    ),
    "loop over lines of the answer": (
        "{{ q|lower }}{% for line in answer.splitlines() %}\n- {{ line }}{% endfor %}",
        "{{ q|lower }}{% for line in answer.splitlines() %}\n- ⟦{{ line }}⟧{% endfor %}",
    ),
    "number in a format": (
        "{{ '%05.2f'|format(n) }} {{ q }} {{ answer }}",
        "{{ '%05.2f'|format(n) }} {{ q }} ⟦{{ answer }}⟧",
    ),
    "list": (
        "{% for tag in tags %}{{ tag|title }}{{ ', ' if not loop.last }}{% endfor %}: {{ answer }}",
        "{% for tag in tags %}{{ tag|title }}{{ ', ' if not loop.last }}{% endfor %}: ⟦{{ answer }}⟧",
    ),
    "object": (
        "{{ meta.source|upper }} {{ meta|tojson }} {{ answer }}",
        "{{ meta.source|upper }} {{ meta|tojson }} ⟦{{ answer }}⟧",
    ),
    "condition on length": (
        "{% if q|length > 60 %}{{ q[:60] }}…{% else %}{{ q }}{% endif %}\n{{ answer }}",
        "{% if q|length > 60 %}{{ q[:60] }}…{% else %}{{ q }}{% endif %}\n⟦{{ answer }}⟧",
    ),
    "condition in an expression": (
        "{{ 'Context: ' ~ ctx if ctx else 'No context' }}\n{{ answer }}",
        "{{ 'Context: ' ~ ctx if ctx else 'No context' }}\n⟦{{ answer }}⟧",
    ),
    "answer or a constant": (
        "{{ q|trim('?') }} {{ answer if ctx else 'unknown' }}",
        "{{ q|trim('?') }} ⟦{{ answer if ctx else 'unknown' }}⟧",
    ),
    "chosen by the answer": (
        "{{ q }} {{ 'long' if answer|length > 100 else 'short' }}",
        "{{ q }} ⟦{{ 'long' if answer|length > 100 else 'short' }}⟧",
    ),
    "set in branches": (
        "{% if answer|length > 9 %}{% set size = 'L' %}{% else %}{% set size = 'S' %}{% endif %}{{ q }} {{ size }}",
        "{% if answer|length > 9 %}{% set size = 'L' %}{% else %}{% set size = 'S' %}{% endif %}{{ q }} ⟦{{ size }}⟧",
    ),
    "set": (
        "{% set first = q.split()[0]|lower %}{% set reply = answer|trim|capitalize %}{{ first }}: {{ reply }}",
        "{% set first = q.split()[0]|lower %}{% set reply = answer|trim|capitalize %}{{ first }}: ⟦{{ reply }}⟧",
    ),
    "block that is trimmed": (
        "{% set body %}\n  {{ q|upper }}\n  A: {{ answer }}  \n{% endset %}{{ body|trim }}",
        "{{ q|upper }}\n  A: ⟦{{ answer.rstrip() }}⟧",
    ),
    "block whose length is written": (
        "{% set body %}<{{ q }}>{% endset %}{{ body|length }} {{ body[:3] }} {{ answer }}",
        "{% set body %}<{{ q }}>{% endset %}{{ body|length }} {{ body[:3] }} ⟦{{ answer }}⟧",
    ),
    "macro for turns": (
        "{% macro turn(role, text) %}<|{{ role }}|>{{ text|trim }}\n{% endmacro %}"
        "{{ turn('user', q|upper) }}{{ turn('assistant', answer) }}",
        "<|user|>{{ q|upper|trim }}\n<|assistant|>⟦{{ answer|trim }}⟧{{ '\n' }}",
    ),
    "macro with both": (
        "{% macro pair(ask, reply='none') -%} Q={{ ask|title }} A={{ reply }} {%- endmacro %}"
        "{{ pair(q, reply=answer) }}",
        "Q={{ q|title }} A=⟦{{ answer }}⟧",
    ),
    "macro whose text is changed": (
        "{% macro turn(text) %}<{{ text }}>{% endmacro %}{{ turn(q)|upper }} {{ turn(answer)|upper }}",
        "<{{ q|upper }}> ⟦<{{ answer|upper }}>⟧",
    ),
    "caller": (
        "{% macro box(title) %}[{{ title|upper }}: {{ caller() }}]{% endmacro %}"
        "{% call box('q') %}{{ q|lower }}{% endcall %}{% call box('a') %}{{ answer|lower }}{% endcall %}",
        "[Q: {{ q|lower }}][A: ⟦{{ answer|lower }}⟧]",
    ),
    "namespace": (
        "{% set ns = namespace(count=0, last='') %}{% for word in q.split() %}{% set ns.count = ns.count + 1 %}"
        "{% set ns.last = word %}{% endfor %}{{ ns.count }} {{ ns.last }} {{ answer }}",
        "{{ q.split()|length }} {{ q.split()[-1] }} ⟦{{ answer }}⟧",
    ),
    "namespace of the answer": (
        "{% set ns = namespace(out='') %}{% for line in answer.splitlines() %}{% set ns.out = ns.out ~ line ~ ';' %}"
        "{% endfor %}{{ q }} {{ ns.out|upper }}",
        "{% set ns = namespace(out='') %}{% for line in answer.splitlines() %}{% set ns.out = ns.out ~ line ~ ';' %}"
        "{% endfor %}{{ q }} ⟦{{ ns.out|upper }}⟧",
    ),
    "turns in a list": (
        "{% for role, text in [('user', q|upper), ('assistant', answer)] %}<|{{ role }}|>{{ text }}\n{% endfor %}",
        "<|user|>{{ q|upper }}\n<|assistant|>⟦{{ answer }}⟧{{ '\n' }}",
    ),
    "items of a dictionary": (
        "{% for name, text in {'Question': q|upper, 'Answer': answer}.items() %}{{ name }}: {{ text }}\n{% endfor %}",
        "Question: {{ q|upper }}\nAnswer: ⟦{{ answer }}⟧{{ '\n' }}",
    ),
    "messages in a list": (
        "{% set messages = [{'role': 'user', 'content': q|trim('?')}, {'role': 'assistant', 'content': answer}] %}"
        "{% for m in messages %}{{ m.role|capitalize }}: {{ m['content'] }}{{ '\n' if not loop.last }}{% endfor %}",
        "User: {{ q|trim('?') }}\nAssistant: ⟦{{ answer }}⟧",
    ),
    "dash whitespace control": (
        "  {%- if ctx %}\n  {{- ctx|upper -}}\n  {%- endif %}\n  {{- q }}  {{- answer -}}  \n",
        "{% if ctx %}{{ ctx|upper }}{% endif %}{{ q }}⟦{{ answer }}⟧",
    ),
    "blocks on their own lines": (
        "# {{ q|trim }}\n  {% if tags %}\n  {% for tag in tags %}\n- {{ tag|upper }}\n  {% endfor %}\n"
        "  {% endif %}\n{{ answer }}",
        "# {{ q|trim }}\n{% for tag in tags %}- {{ tag|upper }}\n{% endfor %}⟦{{ answer }}⟧",
    ),
    "filter block": (
        "{% filter upper %}{{ q }} / {{ ctx }}{% endfilter %}: {{ answer }}",
        "{{ q|upper }} / {{ ctx|upper }}: ⟦{{ answer }}⟧",
    ),
    "with": (
        "{% with words = q.split(), reply = answer|trim %}{{ words|first }} {{ words|last }} {{ reply }}{% endwith %}",
        "{{ q.split()[0] }} {{ q.split()[-1] }} ⟦{{ answer|trim }}⟧",
    ),
    "sorted and unique": (
        "{{ tags|unique|sort|join(' ') }} {{ tags|map('upper')|join('-') }} {{ answer }}",
        "{{ tags|unique|sort|join(' ') }} {{ tags|map('upper')|join('-') }} ⟦{{ answer }}⟧",
    ),
    "joined with a constant": ("{{ q|upper }}{{ '\nAnswer: ' ~ answer }}", "{{ q|upper }}⟦\nAnswer: {{ answer }}⟧"),
    "answer twice": (
        "{{ answer|upper }} / {{ q|upper }} / {{ answer }}",
        "⟦{{ answer|upper }}⟧ / {{ q|upper }} / ⟦{{ answer }}⟧",
    ),
    "text after the answer": (
        "{{ q|reverse }}\n{{ answer|wordcount }} words\n-- {{ n + 1 }} --",
        "{{ q|reverse }}\n⟦{{ answer|wordcount }}⟧ words\n-- {{ n + 1 }} --",
    ),
    "break": (
        "{% for word in q.split() %}{% if loop.index > 3 %}{% break %}{% endif %}{{ word }} {% endfor %}{{ answer }}",
        "{% for word in q.split() %}{% if loop.index > 3 %}{% break %}{% endif %}{{ word }} {% endfor %}⟦{{ answer }}⟧",
    ),
    "wordwrap": (
        "{{ ctx|truncate(40) }}\n{{ answer|wordwrap(20) }}",
        "{{ ctx|truncate(40) }}\n⟦{{ answer|wordwrap(20) }}⟧",
    ),
    "dictionary": (
        "{{ {'math': 'Solve', 'other': 'Do'}[meta.kind] }}: {{ q|lower }}\n{{ answer }}",
        "{{ {'math': 'Solve', 'other': 'Do'}[meta.kind] }}: {{ q|lower }}\n⟦{{ answer }}⟧",
    ),
}

MARKED: dict[str, tuple[str, str]] = {
    "changed": (
        "{{ q|upper }} {% generation %}A: {{ answer|lower }}{% endgeneration %}.",
        "{{ q|upper }} ⟦A: {{ answer|lower }}⟧.",
    ),
    "mixed": (
        "{% generation %}{{ (q ~ ' ' ~ answer)|upper }}{% endgeneration %}",
        "⟦{{ (q ~ ' ' ~ answer)|upper }}⟧",
    ),
    "loop": (
        "{{ ctx }}{% for tag in tags %}{{ tag|upper }}{% generation %}{{ tag[:2] }};{% endgeneration %}{% endfor %}",
        "{{ ctx }}{% for tag in tags %}{{ tag|upper }}⟦{{ tag[:2] }};⟧{% endfor %}",
    ),
    "block that is trimmed": (
        "{% set body %} {{ q }} {% generation %}{{ answer|trim }}{% endgeneration %} {% endset %}{{ body|trim }}",
        "{{ q.lstrip() }} ⟦{{ answer|trim }}⟧",
    ),
    "macro": (
        "{% macro turn(text) %}{% generation %}{{ text|title }}{% endgeneration %}\n{% endmacro %}"
        "{{ q }}{{ turn(answer) }}",
        "{{ q }}⟦{{ answer|title }}⟧\n",
    ),
}
"""Templates with generation marks."""

MIXED = {
    "joined": "{{ q ~ ' ' ~ answer }}",
    "added": "{{ q + answer }}",
    "list": "{{ [q, answer]|join(', ') }}",
    "percent": "{{ '%s %s' % (q, answer) }}",
    "filter": "{{ (q ~ ' ' ~ answer)|upper }}",
    "argument": "{{ q|replace('x', answer) }}",
    "index": "{{ tags[n] }}",
    "set": "{% set both = q ~ answer %}\n{{ both|length }}",
    "comparison": "{{ answer == q }}",
    "condition": "{{ 'yes' if answer in tags else 'no' }}",
    "macro": "{% macro shout(text) %}{{ text|upper }}{% endmacro %}\n{{ shout(q ~ answer) }}",
    "format": "{{ '{} {}'.format(q, answer) }}",
    "filter block": "{% filter upper %}{{ q }}{{ answer }}{% endfilter %}",
    "sum": "{{ q|length + answer|length }}",
}
"""Templates that mix `answer` (in `index`: `n`) with other columns in one expression."""
