"""The YAML's tools, which the chat template gets for every row that declares none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import LARGEST_FILE, read_small_text
from tokenloom.errors import ConfigError, TemplateError
from tokenloom.resources.sources.resolve import local_path
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import one_array

if TYPE_CHECKING:
    from tokenloom.assets.prompts.chat import ChatFormat

SETTING = "prompt_template.tools"


@dataclass(frozen=True)
class WithTools:
    """Renders conversations; rows without tools get the YAML's. `tools` is JSON text."""

    render: Callable[[pa.Table], ChunkOutput]
    tools: str

    def __call__(self, table: pa.Table) -> ChunkOutput:
        if "tools" not in table.column_names:
            described = pa.repeat(pa.scalar(self.tools, pa.string()), table.num_rows)
            return self.render(table.append_column("tools", described))
        own = one_array(table["tools"])
        described = pc.if_else(pc.equal(own, ""), self.tools, own)
        return self.render(table.set_column(table.schema.get_field_index("tools"), "tools", described))


def declared_tools(config: PipelineConfig) -> str:
    """Return the YAML's tools as JSON text, or "" for none.

    Raises:
        ConfigError: the file does not exist, or the tools are not a JSON list of objects with a name each.
    """
    given = config.prompt_template.tools
    if given is None:
        return ""
    if isinstance(given, str):
        inline = given.lstrip().startswith(("[", "{"))
        try:
            tools = read_json_value(given if inline else _read_file(config, given))
        except ValueError as error:
            raise _fault(config, f"{'the text' if inline else given} is not valid JSON: {error}") from error
    else:
        tools = list(given)
    if not isinstance(tools, list) or not tools:
        raise _fault(config, f"expected a list of tool descriptions, found {_shown(tools)}")
    for number, tool in enumerate(tools, 1):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]):
            example = '{"type": "function", "function": {"name": "lookup", "parameters": {}}}'
            raise _fault(config, f"tool {number} has no name: {_shown(tool)}; describe it like {example}")
    try:
        return json.dumps(tools, ensure_ascii=False)
    except TypeError as error:
        raise _fault(
            config, f"a tool contains a value that JSON cannot represent: {error}; put it in quotes"
        ) from error


def check_tools(config: PipelineConfig, chat: ChatFormat, tools: str) -> None:
    """Check that the chat template renders the tools.

    Raises:
        ConfigError: the chat template omits the tools, or they contain a control token's text.
    """
    for token in chat.control:
        if token in tools:
            raise _fault(config, f"a tool contains the text of the control token {token}; rephrase it")
    user, answer = {"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}
    for messages in ([user, answer], [{"role": "system", "content": "rule"}, user, answer], [user]):
        try:
            without_tools, with_tools = (chat.written(messages, False, given) for given in (None, json.loads(tools)))
        except TemplateError:
            continue
        if without_tools == with_tools:
            message = "the chat template omits tools; set tokenizer.chat_template to one that reads `tools`"
            raise _fault(config, message)
        return


def refuse_tools(config: PipelineConfig) -> None:
    """Check that a dataset without a chat template has no tools and no variables for a chat template.

    Raises:
        ConfigError: the YAML has them.
    """
    need = "need a chat template, but these rows do not use one; set format_type: chat"
    if config.prompt_template.tools is not None:
        raise _fault(config, f"tools {need}")
    if config.prompt_template.template_kwargs:
        raise config.fault("prompt_template.template_kwargs", f"these variables {need}")


def _read_file(config: PipelineConfig, name: str) -> str:
    path = local_path(config, name)
    if path is None or not path.is_file():
        raise _fault(config, f"no such file: {name}")
    try:
        return read_small_text(path, LARGEST_FILE)
    except OSError as error:
        raise _fault(config, f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _fault(config, f"{name} is not UTF-8 text") from error


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _fault(config: PipelineConfig, message: str) -> ConfigError:
    return config.fault(SETTING, message)
