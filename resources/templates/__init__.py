"""Prompt and chat templates, before any row is rendered.

Modules, in the order in which they are used:

- `from_yaml`: compiles the templates that a YAML names, locates their errors in the YAML, and lists their columns.
- `named`: the chat templates that a YAML can name.
- `jinja`: compiles and renders a template, and finds where it places each value.
- `prefix_texts`: finds the texts for the beginnings of a conversation in one text.
- `marks`: what stands for values in variables and outlines, what a template can ask of them, and how rows answer.
- `trace`: text that knows where it comes from, and notes what a template asks of it.
- `traced_sandbox`: runs templates over such text, and finds the output nodes that depend on trained columns.
- `sandbox`: limits what a template can reach and how much work it can do.
"""
