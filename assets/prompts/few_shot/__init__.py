"""Few-shot prompting: examples before each row, none of them trained.

- `examples_file`: reads the examples of `few_shot.source`; without it, examples are the other rows of the chunk.
- `draw`: chooses the examples of each row.
- `chat_turns`: adds examples to conversations as earlier turns.
- `plain_text`: adds examples to rows without a chat template as text.
"""
