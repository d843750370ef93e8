"""Few-shot prompting: examples before each row, none of them trained.

- `examples`: reads those of `few_shot.source`, else the other rows of the chunk, and draws those of each row.
- `chat_turns`: adds examples to conversations as earlier turns.
- `plain_text`: adds examples to rows without a chat template as text.
"""
