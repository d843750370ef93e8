"""The starter: what a source contains, how its rows will look, and a YAML to start from."""

STYLES = {
    "alpaca": "'### Instruction:' before the prompt, '### Response:' before the answer",
    "chat": "the tokenizer's chat template, or ChatML",
    "lines": "a line break between prompt and answer",
    "plain": "a blank line between prompt and answer",
    "qa": "'Question:' before the prompt, 'Answer:' before the answer",
}
"""How prompts and answers can be rendered; apart from `chat`, names of built-in chat templates."""
