"""Prompt and chat templates, before any row is rendered.

Modules, in the order in which they are used:

- `from_yaml`: compiles the templates that a YAML names, locates their errors in the YAML, and lists their columns.
- `named`: the chat templates that a YAML can name.
- `jinja`: compiles and renders a template, and finds where it places each value.
- `prefix_texts`: finds the texts for the beginnings of a conversation in one text.
- `trace`: text that knows where it comes from, what a template asks of it, and the output nodes of a template that
  depend on trained columns.
- `sandbox`: limits what a template can reach and how much work it can do.
"""
