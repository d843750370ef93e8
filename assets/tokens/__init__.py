"""tokens: tokenizes each row's text, and converts its spans from bytes to tokens.

Modules, in the order in which a row passes through them:

- `stage`: the stage. `probe` tokenizes fixed texts.
- `encode`: tokenizes the segments of a chunk.
- `engines`: the two tokenizer libraries, `tokenizers` and gigatoken.
- `gigatoken_encoder`: tokenizes a chunk with gigatoken, and finds the segments that `tokenizers` must tokenize.
- `engine_certificate`: tests code point by code point where the two libraries agree.
- `vocabulary`: the bytes of each token id. `token_bytes` sums the lengths of tokens.
- `loss_mask`: assigns each token to a span, which decides whether it is trained.
- `contract`: the columns of a stored chunk, and the checks that every chunk must pass.
"""
