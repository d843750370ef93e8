"""tokens: tokenizes each row's text, and converts its spans from bytes to tokens.

Modules, in the order in which a row passes through them:

- `stage`: the stage, its contract and its probe.
- `encode`: tokenizes the segments of a chunk.
- `engines`: the two tokenizer libraries, `tokenizers` and gigatoken.
- `gigatoken`: tokenizes a chunk with gigatoken, and finds the segments that `tokenizers` must tokenize, by a
  certificate of where the two agree.
- `vocabulary`: the bytes of each token id, and of the tokens of a chunk.
- `loss_mask`: assigns each token to a span, which decides whether it is trained.
- `answer_borders`: counts answers whose prompt is tokenized otherwise at inference, and control tokens in contents.
"""
