"""prompts: renders each row as text, with spans that give the role and the training weight of each byte.

Modules, in the order in which a row passes through them:

- `stage`: the stage, its contract and its probe. `render` builds the function that renders a chunk.
- `conversations`: groups conversations that differ only in their contents.
- `tools`, `few_shot`: add the YAML's tools, and examples, to the rows.
- `chat`: renders conversations through a chat template. `outline` is the text of a shape, in which `turn_boundaries`
  finds what the model generates of each turn, `stops` its stop, `conversations` the form in which the template takes
  the arguments of tool calls, `inline_reasoning` the parts of answers with `<think>…</think>` (`think_tags`), and
  `answer_parts` which text is reasoning and tool calls. `answer_kinds` divides answers for weights by kind, whose
  settings `kind_settings` checks.
- `trained_turns`: finds turns that are not trained as at inference. `exact_turns` splits conversations into texts in
  which all are, and `continued_prompt` writes turns after the generation prompt where the template does not.
- `jinja_fields`: renders columns through the YAML's Jinja template.
- `segments`: builds the pieces of texts that need no Jinja, adds BOS, EOS and control tokens, and cuts texts at control
  tokens, for the stages `tokenizer` and `tokens`.
- `verify`: fills a template's slots with Arrow, and compares the texts with what Jinja renders.
- `spans`: builds the texts and their spans.
- `inference`: renders prompts for inference, up to the answer.
- `chat_certificate`: records what a chat template does with a few test conversations.
- `truncation_order`: checks the length settings, and orders the parts of a row for `length.strategy: smart`.
"""
