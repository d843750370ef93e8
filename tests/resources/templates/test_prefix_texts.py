"""Texts for the beginnings of a conversation, found in one text, are what the template writes for them."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.resources.templates.jinja import JinjaTemplate

HEAD = "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}{% set rest = messages[1:] %}"
HEAD += "{% else %}{% set rest = messages %}{% endif %}"
TURN = "<{{ m.role }}>{{ loop.index0 }}{{ m.content }}{% for c in 'ab' %}{{ loop.last }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<assistant>{% endif %}"
WRITTEN = {
    "plain": f"{{% for m in messages %}}{TURN}{{% endfor %}}{PROMPT}",
    "a system message": f"{HEAD}{{% for m in rest %}}{TURN}{{% endfor %}}{PROMPT}",
    "a check": f"{HEAD.replace('if ', 'if messages and ', 1)}{{% for m in rest %}}{TURN}{{% endfor %}}",
    "continue": f"{{% for m in messages %}}{{% if loop.first %}}{{% continue %}}{{% endif %}}{TURN}{{% endfor %}}",
    "a namespace": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{{ n.x }}{% endfor %}",
}
AHEAD = {
    "the last item": "{% for m in messages %}{{ m.content }}{{ loop.last }}{% endfor %}",
    "the next item": "{% for m in messages %}{{ loop.nextitem.content }}{% endfor %}",
    "the last by name": "{% for m in messages %}{{ loop['last'] }}{% endfor %}",
    "the loop itself": "{% for m in messages %}{% set l = loop %}{{ l.last }}{% endfor %}",
    "the last message": "{% for m in messages %}{{ messages[-1].content }}{% endfor %}",
    "their number": "{% for m in messages %}{{ messages | length }}{% endfor %}",
    "whether the rest is empty": "{% set rest = messages[1:] %}{% for m in rest %}{{ rest and 1 }}{% endfor %}",
    "another name": "{% set all = messages %}{% for m in messages %}{{ all | length }}{% endfor %}",
    "reversed": "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
    "a second loop": "{% for m in messages %}x{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "state after the loop": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = 1 %}{% endfor %}{{ n.x }}",
    "a break": "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    "a test": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    "an else": "{% for m in messages %}{{ m.content }}{% else %}none{% endfor %}",
    "a loop in a block": "{% set t %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ t | length }}",
    "an outer loop": "{% for m in messages %}{% for a in [loop.last] %}{{ a }}{% endfor %}{% endfor %}",
    "a name twice": "{% set rest = messages %}{% set rest = [] %}{% for m in rest %}{{ m.content }}{% endfor %}",
}


def variables(count: int, prompted: bool = False) -> dict[str, Any]:
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": f"c{index}"} for index, role in enumerate(roles)]
    return {"messages": messages[:count], "add_generation_prompt": prompted}


@pytest.mark.parametrize("source", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("prompted", [False, True])
def test_beginnings_are_as_rendered(source: str, prompted: bool) -> None:
    template = JinjaTemplate(source)
    found = template.prefixes(variables(5, prompted))
    assert found is not None
    assert [found.of(count) for count in range(1, 6)] == [
        template.render(variables(count, prompted)) for count in range(1, 6)
    ]
    assert found.of(0) is None


@pytest.mark.parametrize("source", AHEAD.values(), ids=AHEAD)
def test_a_template_that_looks_ahead_has_none(source: str) -> None:
    assert JinjaTemplate(source).prefixes(variables(5)) is None


def test_a_text_with_the_mark_has_none() -> None:
    given = variables(5)
    given["messages"][1]["content"] = "\ue0d4"
    assert JinjaTemplate(WRITTEN["plain"]).prefixes(given) is None
