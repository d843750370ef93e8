"""The check `contract`: what a stage stored is undamaged, satisfies its contract, and accounts for all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.dagster.checks.stage_check import Checked, StageCheck, Verdict, check, listed
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.names import TOKENIZERS
from tokenloom.assets.stage.rejects import count_rejected
from tokenloom.errors import DamagedObjectError, DataValidationError, StoreUnavailableError, TokenloomError
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk


@dataclass(frozen=True)
class CheckedChunk:
    """The result of checking one chunk.

    Args:
        rows: number of rows read.
        failures: what is wrong.
        dropped: whether `gc` dropped the output, so that only what is stored with it was checked.
    """

    rows: int
    failures: list[str]
    dropped: bool = False


def contract(stage: str) -> StageCheck:
    """Return the check of a stage's output."""

    @check(stage, blocking=True)
    def contract(checked: Checked) -> Verdict:
        """Within a run: the stage accounts for every row of the stage before it. What the run computed was checked
        against the contract before it was stored; what it reused has its recorded size. Run alone: rereads every chunk
        of the latest output, compares it with its digest and contract, and removes what is damaged, so that the next
        run computes just those chunks."""
        manifest = checked.build.manifest(stage)
        if checked.report is None:
            return _reread(checked.build, manifest)
        problems = [*_unaccounted(checked.build, manifest)]
        metadata = {"chunks": len(manifest.chunks), "rows": manifest.total("rows_out"), "failed_chunks": len(problems)}
        counted = f"{manifest.total('rows_in'):,} rows in, all accounted for in {len(manifest.chunks):,} chunks"
        return Verdict(not problems, listed(problems) or counted, metadata)

    return contract


def _unaccounted(build: Build, manifest: Manifest) -> list[str]:
    """Return where the counts of rows do not add up."""
    stage, problems = manifest.stage, list[str]()
    for chunk in manifest.chunks:
        accounted = chunk.rows_out + chunk.rejected + chunk.filtered
        if chunk.rows_in != accounted:
            problems.append(
                f"{stage}: {chunk.place(0)}: {chunk.rows_in:,} rows in, but {accounted:,} out, rejected or filtered; "
                "build from another store, and report this"
            )
    for above in stage_named(stage).above(build.config)[: stage != TOKENIZERS]:  # which reads no rows, or only `train`
        passed_on, rows_in = build.manifest(above).total("rows_out"), manifest.total("rows_in")
        if passed_on != rows_in:
            problems.append(f"{stage}: {above} passed on {passed_on:,} rows, but {rows_in:,} came in; run both again")
    return problems


def _reread(build: Build, manifest: Manifest) -> Verdict:
    stage, store = stage_named(manifest.stage), build.store
    check = partial(_check_chunk, stage, store, build.drops(stage))
    chunks = list(build.engine.map(check, manifest.chunks, store))
    failures = [failure for chunk in chunks for failure in chunk.failures]
    rows, dropped = sum(chunk.rows for chunk in chunks), sum(chunk.dropped for chunk in chunks)
    failed = sum(bool(chunk.failures) for chunk in chunks)
    metadata = {"chunks": len(chunks), "rows": rows, "failed_chunks": failed}
    text = listed(failures) or f"{rows:,} rows reread in {len(chunks) - dropped:,} chunks, none damaged"
    if dropped:
        text += f"\ngc dropped {dropped:,} of {len(chunks):,} chunks, as keep: sequences allows"
    return Verdict(not failures, text, metadata)


def _check_chunk(stage: Stage, store: ArtifactStore, droppable: bool, chunk: ManifestChunk) -> CheckedChunk:
    from tokenloom.assets.stage.validation import validate, validate_rejects

    rows, failures = 0, list[str]()

    def output(table: pa.Table) -> None:
        nonlocal rows
        rows = table.num_rows
        validate(stage, table, by_pandera=True)

    def rejects(table: pa.Table) -> None:
        validate_rejects(table)
        if (stored := count_rejected(table)) != chunk.rejected:
            raise DataValidationError(f"{chunk.rejected:,} rejected rows are recorded, {stored:,} are stored")

    dropped = droppable and store.objects.size(chunk.output) is None
    checks = {"output": output, "rejects": rejects, "lengths": lambda table: None}
    for kind, digest in chunk.objects.items():
        if not (dropped and kind == "output") and (problem := _faulty(store, digest, checks[kind])):
            failures.append(f"{stage.name}: {kind} of {chunk.place(0)}: {problem}")
    return CheckedChunk(rows, failures, dropped)


def _faulty(store: ArtifactStore, digest: str, check: Callable[[pa.Table], None]) -> str | None:
    """Return what is wrong with an object, and remove it, so that the next build computes it again."""
    try:
        check(store.objects.get_intact(digest))
    except StoreUnavailableError:
        raise
    except (DamagedObjectError, DataValidationError) as error:
        store.objects.delete(digest)
        what = "is damaged" if isinstance(error, DamagedObjectError) else f"is not valid ({error})"
        return f"object {digest} {what} and has been removed; the next run computes this chunk again"
    except TokenloomError as error:
        return str(error)
    return None
