"""The stop of an answer: all that the template writes to end the turn, up to and including EOS, trained once.

Each template here writes its turns from a few strings, so that the trained parts are known without rendering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from support.canonical_tables import Row, said, table_of
from support.rendered_prompts import assert_partition, trained_parts
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.chat_certificate import certificate, notices
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.templates.jinja import JinjaTemplate

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|user|>", "<|assistant|>", "<|endoftext|>")
CONTROL += ("<|END_RESPONSE|>", "<|END_OF_TURN|>", "<|START|>", "<|return|>", "<call>", "</call>")

Q1, A1, Q2, A2 = said("user", "Q1"), said("assistant", "A1"), said("user", "Q2"), said("assistant", "A2")
CALL = said("assistant", tool_calls=[{"id": None, "name": "f", "arguments": "{}"}])
RESULT = said("tool", "R")
CALLED = "<call>f {}</call>"


@dataclass(frozen=True)
class Ending:
    """How a family of templates ends its turns.

    Args:
        header: Jinja that writes the header of message `m`.
        end: Jinja that writes what follows each message.
        finish: Jinja that writes what follows the conversation.
        eos: the tokenizer's EOS.
        stop, last: the trained stop of an answer within a conversation, and at its end.
    """

    header: str
    end: str
    finish: str
    eos: str
    stop: str
    last: str

    @property
    def template(self) -> str:
        call = "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
        calls = f"{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}"
        loop = f"{{% for m in messages %}}{self.header}{{{{ m.content }}}}{calls}{self.end}{{% endfor %}}"
        prompt = self.header.replace("m.role", "'assistant'")
        return f"{loop}{{% if add_generation_prompt %}}{prompt}{{% else %}}{self.finish}{{% endif %}}"


IM = "<|im_start|>{{ m.role }}{{ '\n' }}"
BARS = "{{ '<|' + m.role + '|>\n' }}"
NAMES = "{{ m.role }}: "
EOS = "{{ eos_token }}"
ENDINGS = {
    "one token": Ending(IM, "<|im_end|>{{ '\n' }}", "", "<|im_end|>", "<|im_end|>", "<|im_end|>"),
    "one token, EOS another": Ending(IM, "<|im_end|>{{ '\n' }}", "", "</s>", "<|im_end|>", "<|im_end|>"),
    "two tokens": Ending(IM, "<|im_end|>" + EOS + "{{ '\n' }}", "", "</s>", "<|im_end|></s>", "<|im_end|></s>"),
    "two tokens on two lines": Ending(
        IM, "<|im_end|>{{ '\n' }}" + EOS, "", "</s>", "<|im_end|>\n</s>", "<|im_end|>\n</s>"),
    "two tokens, EOS another": Ending(
        IM, "<|END_RESPONSE|><|END_OF_TURN|>", "", "</s>", *["<|END_RESPONSE|><|END_OF_TURN|>"] * 2),
    "EOS only at the end": Ending(BARS, "<|end|>{{ '\n' }}", EOS, "</s>", "<|end|>", "<|end|>\n</s>"),
    "EOS starts the next turn": Ending(
        "{% if loop is not defined or not loop.first %}" + EOS + "{% endif %}" + IM,
        "<|im_end|>", "", "</s>", "<|im_end|>", "<|im_end|>"),
    "text, then EOS": Ending(NAMES, "{{ '\n### End' }}" + EOS + "{{ '\n' }}", "", "</s>", *["\n### End</s>"] * 2),
    "text, EOS only at the end": Ending(
        NAMES, "{{ '\n### End\n' }}", EOS, "</s>", "\n### End", "\n### End\n</s>"),
    "space and EOS": Ending(NAMES, " " + EOS + "<s>", "", "</s>", " </s>", " </s>"),
    "EOS is BOS": Ending(EOS + NAMES, EOS + "{{ '\n' }}", "", "<s>", "<s>", "<s>"),
    "another token at the end": Ending(
        IM, "{{ '<|return|>' if loop.last else '<|end|>' }}", "", "<|return|>", "<|end|>", "<|return|>"),
    "EOS before a footer": Ending(NAMES, EOS + "{{ '\n' }}", "That is all.", "</s>", "</s>", "</s>"),
}  # fmt: skip


def chat(ending: Ending, **prompt: Any) -> ChatFormat:
    tokens = {"bos_token": "<s>", "eos_token": ending.eos}
    settings = PromptTemplateConfig(format_type="chat", **prompt)
    return ChatFormat(JinjaTemplate(ending.template), settings, tokens, CONTROL, None, ending.eos)


def parts(ending: Ending, talk: list[Row], **prompt: Any) -> list[str]:
    out = chat(ending, **prompt).render(table_of("messages", [{"messages": talk}]))
    assert out.rejects.num_rows == 0, out.rejects.to_pylist()
    (made,) = out.table.to_pylist()
    assert_partition(made["text"], made["spans"])
    return trained_parts(made["text"], made["spans"])


@pytest.mark.parametrize("name", ENDINGS)
def test_the_stop_is_all_that_ends_the_turn(name: str) -> None:
    ending = ENDINGS[name]
    assert parts(ending, [Q1, A1]) == [f"A1{ending.last}"]
    assert parts(ending, [Q1, A1, Q2, A2]) == [f"A1{ending.stop}", f"A2{ending.last}"]
    assert parts(ending, [Q1, A1, Q2]) == [f"A1{ending.stop}"]
    assert parts(ending, [Q1, A1, Q2, A2], train_on="last") == [f"A2{ending.last}"]
    empty = said("assistant")
    assert parts(ending, [Q1, empty, Q2, A2]) == [ending.stop, f"A2{ending.last}"]
    assert parts(ending, [Q1, A1, said("user"), A2]) == [f"A1{ending.stop}", f"A2{ending.last}"]


@pytest.mark.parametrize("name", [name for name in ENDINGS if name != "another token at the end"])
def test_the_stop_of_a_call_is_that_of_an_answer(name: str) -> None:
    ending = ENDINGS[name]
    assert parts(ending, [Q1, CALL]) == [CALLED + ending.last]
    assert parts(ending, [Q1, CALL, RESULT, A1]) == [CALLED + ending.stop, f"A1{ending.last}"]
    assert parts(ending, [Q1, A1, Q2, CALL, RESULT]) == [f"A1{ending.stop}", CALLED + ending.stop]


@pytest.mark.parametrize("name", ENDINGS)
def test_the_certificate_shows_the_tokens_of_the_stop(name: str) -> None:
    ending = ENDINGS[name]
    findings = certificate(chat(ending))
    stop = next(finding for finding in findings if finding["name"] == "stop")
    with_eos = [text.endswith(ending.eos) for text in (ending.last, ending.stop)]
    where = "" if not with_eos[0] else "in earlier answers "
    expected = "trained, ends with EOS" if all(with_eos) else f"trained, {where}without EOS {ending.eos}"
    assert stop["found"] == expected
    quoted = [token for token in CONTROL if token in ending.last]
    assert all(f'"{token}"' in stop["evidence"] for token in quoted)
    assert bool(notices(findings)) == (not all(with_eos))


def test_tokens_that_the_tokenizer_lacks_are_reported() -> None:
    findings = certificate(chat(ENDINGS["one token"]))
    assert next(finding["found"] for finding in findings if finding["name"] == "control tokens") == "known"
    unknown = Ending("<|turn|>", "<|im_end|>", "", "<|im_end|>", "<|im_end|>", "<|im_end|>")
    (notice,) = notices(certificate(chat(unknown)))
    assert "<|turn|>" in notice and "special_tokens.additional" in notice


def test_a_stop_outside_the_generation_marks_is_reported() -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% endfor %}"
    settings = PromptTemplateConfig(format_type="chat")
    marked = ChatFormat(JinjaTemplate(template), settings, {"eos_token": "</s>"}, CONTROL, None, "</s>")
    findings = certificate(marked)
    assert next(finding["found"] for finding in findings if finding["name"] == "stop") == "not trained"
    assert "does not learn to stop" in notices(findings)[0]
