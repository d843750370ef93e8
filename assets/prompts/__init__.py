"""prompts: renders each row as text, with spans that give the role and the training weight of each byte.

Modules, in the order in which a row passes through them:

- `stage`: the stage, its contract and its probe. `render` builds the function that renders a chunk, and checks that the
  settings fit the rows; `truncation_order` checks the length settings.
- `conversations`: groups conversations that differ only in their contents. `few_shot` adds examples to rows.
- `chat`: renders conversations through a chat template. `accepted` finds what a template reads, and in which form.
- `outline` is the text of a shape, in which `turns` finds what the model generates of each message and its stop, and
  `kinds` which of that is reasoning and tool calls.
- `exact`: finds turns that are not trained as at inference, and splits conversations into texts in which all are.
- `jinja_fields`: renders columns through the YAML's Jinja template.
- `segments`: builds the pieces of texts that need no Jinja, adds BOS, EOS and control tokens, and cuts texts at control
  tokens, for the stages `tokenizer` and `tokens`.
- `verify`: fills a template's slots with Arrow, and compares the texts with what Jinja renders.
- `text_ranges`: weighs ranges of a message's text. `images` puts the tokens of images into texts.
- `spans`: builds the texts and their spans.
- `inference`: renders prompts for inference, up to the answer.
- `chat_certificate`: records what a chat template does with a few test conversations.
"""
