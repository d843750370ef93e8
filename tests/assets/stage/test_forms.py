"""The forms of rows: that each one says all that the stages derive from it."""

from __future__ import annotations

from typing import get_args

import pyarrow as pa
import pytest

from tokenloom.assets.columns.canonical import CONVERTERS
from tokenloom.assets.stage.forms import FIELDS, FORMS, Form, allowed_forms, form_named
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.tables.sequence_schema import KINDS


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    return FORMS[request.param]


def test_only_forms_of_texts_need_no_converter(form: Form) -> None:
    assert (form.name in CONVERTERS) != bool(form.written)
    if form.written:
        assert {*form.types.values()} == {pa.string()}
        assert {*form.written} <= {*form.columns}
        assert {*form.filled} <= {*form.required} <= {*form.written}


def test_rows_show_a_prompt_or_say_that_they_have_none(form: Form) -> None:
    assert bool(form.promptless) != bool(form.spoken or "input" in form.written.values())


def test_answers_written_without_a_chat_template_have_a_remedy(form: Form) -> None:
    assert "answer" not in form.written.values() or form.border


def test_roles_and_batches_are_known(form: Form) -> None:
    assert form.batch in KINDS
    assert len({*form.roles}) == len(form.roles)
    assert {*form.filled} <= {*form.roles}


def test_format_types_of_the_yaml_and_of_the_forms_are_the_same() -> None:
    declared = {*get_args(PromptTemplateConfig.model_fields["format_type"].annotation)}
    assert declared == {name for form in (*FORMS.values(), FIELDS) for name in form.format_types}
    assert [allowed_forms(name) for name in FIELDS.format_types] == [(), ()]


def test_no_two_forms_have_the_same_columns() -> None:
    types = [form.types for form in FORMS.values()]
    assert all(types.count(own) == 1 for own in types)
    assert form_named("messages") is FORMS["messages"]
    assert form_named("fields") is FIELDS
