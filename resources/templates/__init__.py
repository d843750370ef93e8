"""Prompt and chat templates, before any row is rendered.

Modules, in the order in which they are used:

- `from_yaml`: compiles the templates that a YAML names, locates their errors in the YAML, and lists their columns.
- `named`: the chat templates that a YAML can name.
- `jinja`: compiles and renders a template, and finds where it places each value.
- `prefix_texts`: finds the texts for the beginnings of a conversation in one text.
- `traced_text`: text that knows its columns, and the output nodes of a template that depend on trained columns.
- `static_analysis`: decides from a template's syntax whether it only places values.
- `sandbox`: limits what a template can reach and how much work it can do.
"""
