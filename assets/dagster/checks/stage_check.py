"""What a check of a stage is: a function from what was built, or is stored, to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport
from tokenloom.errors import StoreUnavailableError, TokenloomError
from tokenloom.resources.visible import as_markdown

MAX_LISTED = 5
"""Maximum number of places listed in a description."""


@dataclass(frozen=True)
class Checked:
    """What a check looks at.

    Args:
        build: the build of this run, or one that has run nothing.
        report: the report of the stage in this run; None: the check runs alone, on what is stored.
    """

    build: Build
    report: StageReport | None = None


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Args:
        description: what was found, with place and remedy.
        metadata: numbers, under names that stay the same from run to run, and tables.
        warns: if it did not pass, it is a warning rather than an error.
    """

    passed: bool
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warns: bool = False

    def result(self, asset_key: dg.AssetKey, name: str) -> dg.AssetCheckResult:
        """Return the verdict as Dagster's result of an asset's check."""
        severity = dg.AssetCheckSeverity.WARN if self.warns else dg.AssetCheckSeverity.ERROR
        return dg.AssetCheckResult(
            asset_key=asset_key,
            check_name=name,
            passed=self.passed,
            description=as_markdown(self.description),
            metadata=self.metadata,
            severity=severity,
        )


@dataclass(frozen=True)
class StageCheck:
    """A check of a stage's asset.

    Args:
        name: unique among the checks of its stage.
        stage: the stage.
        description: what it checks.
        blocking: whether nothing downstream is materialized if it fails.
        run: returns the verdict.
    """

    name: str
    stage: str
    description: str
    blocking: bool
    run: Callable[[Checked], Verdict]


def check(
    stage: str, blocking: bool = False, warns: bool = False
) -> Callable[[Callable[[Checked], Verdict]], StageCheck]:
    """Decorate a function from what was built, or is stored, to a verdict: it becomes a `StageCheck` with its name, and
    its docstring as description. It fails with the message of a `TokenloomError`; an unavailable store is no finding,
    and raises.

    Args:
        warns: such a failure is a warning.
    """

    def of(run: Callable[[Checked], Verdict]) -> StageCheck:
        def checked(what: Checked) -> Verdict:
            try:
                return run(what)
            except StoreUnavailableError:
                raise
            except TokenloomError as error:
                return Verdict(False, str(error), warns=warns)

        return StageCheck(run.__name__, stage, " ".join((run.__doc__ or "").split()), blocking, checked)

    return of


def listed(lines: Iterable[str]) -> str:
    """Return the first lines, and how many more there are."""
    found = list(lines)
    more = len(found) - MAX_LISTED
    return "\n".join([*found[:MAX_LISTED], *([f"… and {more:,} more"] if more > 0 else [])])
