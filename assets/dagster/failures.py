"""How a step fails: with one sentence, at once for a mistake, after retries for an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from tokenloom.errors import TokenloomError

WAITS = (5, 15, 45)
"""Seconds before each retry."""


@contextmanager
def failing_clearly(context: dg.AssetExecutionContext) -> Iterator[None]:
    """End the step with the message of a `TokenloomError` alone, without a traceback.

    A store, hub or server that is away is tried again after some seconds; everything else fails at once.
    """
    try:
        yield
    except TokenloomError as error:
        attempt = context.op_execution_context.retry_number
        if error.is_outage and attempt < len(WAITS):
            wait = WAITS[attempt]
            context.log.warning(f"{error}; trying again in {wait} s (retry {attempt + 1} of {len(WAITS)})")
            raise dg.RetryRequested(max_retries=len(WAITS), seconds_to_wait=wait) from None
        raise dg.Failure(description=str(error), allow_retries=False) from None
