"""Answers that a model generates to rows of the validation split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from tokenloom.loaders import TokenDataset

NEW_TOKENS = 64

TEXT_PROMPT = 16
"""Tokens of a row without a prompt that the model continues."""


def generated_samples(
    model: Any, tokenizer: Any, datasets: Mapping[str, TokenDataset], count: int
) -> Iterator[dict[str, Any]]:
    """Yield the `prompt`, the `expected` answer and the `generated` one of the first rows of each dataset.

    A prompt is what comes before the first trained token. Answers are generated greedily, and end after 64 tokens.

    Args:
        count: rows of each dataset.
    """
    for name, dataset in datasets.items():
        for row in islice(map(dataset.__getitem__, range(len(dataset))), count):
            prompt, answer = _first_answer(row)
            if not len(prompt):
                continue
            ends = {tokenizer.eos_token_id, *set(answer[-1:].tolist()) & set(tokenizer.all_special_ids)} - {None}
            given = torch.as_tensor(prompt, device=model.device)[None]
            with torch.no_grad():
                output = model.generate(
                    input_ids=given,
                    attention_mask=torch.ones_like(given),
                    do_sample=False,
                    max_new_tokens=NEW_TOKENS,
                    eos_token_id=sorted(ends) or None,
                    pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
                )
            texts = (prompt, answer, output[0, len(prompt) :].cpu())
            decoded = dict(zip(("prompt", "expected", "generated"), map(tokenizer.decode, texts), strict=True))
            yield {"dataset": name, **decoded}


def _first_answer(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens before the first trained one, and the trained ones after them, of a row's first document."""
    side = "chosen_" if "chosen_labels" in row else ""
    ids, trained = np.asarray(row[f"{side}input_ids"]), np.asarray(row[f"{side}labels"]) != -100
    if "position_ids" in row:
        starts = np.flatnonzero(np.asarray(row["position_ids"]) == 0)
        end = starts[1] if len(starts) > 1 else len(ids)
        ids, trained = ids[:end], trained[:end]
    begin = int(trained.argmax()) if trained.any() else len(ids)
    if begin <= 1:  # all of it is trained
        return ids[:TEXT_PROMPT], ids[TEXT_PROMPT:][:NEW_TOKENS]
    untrained = np.flatnonzero(~trained[begin:])
    return ids[:begin], ids[begin:][: untrained[0] if len(untrained) else None]
