"""Prompt and chat templates, before any row is rendered.

Modules, in the order in which they are used:

- `custom`: parses `custom` templates (`{column}`).
- `from_yaml`: compiles the Jinja templates that a YAML names, and locates their errors in the YAML.
- `columns_used`: lists the columns that the YAML's template uses.
- `chatml`: built-in chat templates for conversations. `named`: all templates that a YAML can name.
- `jinja`: compiles and renders a template, and finds where it places each value.
- `prefix_texts`: finds the texts for the beginnings of a conversation in one text.
- `trained_nodes`: finds the output nodes that depend on trained columns. `traced_text`: text that knows its columns.
- `static_analysis`: decides from a template's syntax whether it only places values.
- `sandbox`: limits what a template can reach and how much work it can do. `work_meter` counts the work, and `deadline`
  ends what is not counted.
"""
