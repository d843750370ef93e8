"""The checks of a dataset's assets, as functions from what was built, or is stored, to a verdict: `contract` of every
stage, `template` and `turns` of prompts, `contamination` of evaluations, and `rejects`, `answers`, `drift`, `overlap`
and `stored` of sequences. They know nothing of how Dagster runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport, reject_reasons
from tokenloom.assets.dagster.metadata import rejects_table, text_table
from tokenloom.assets.stage.definition import Stage, stage_named
from tokenloom.assets.stage.forms import form_named
from tokenloom.assets.stage.names import COLUMNS, DECONTAMINATE, LOADED, PROMPTS, RAW, TOKENIZERS, stages_of
from tokenloom.assets.stage.rejects import count_rejected
from tokenloom.config import PipelineConfig
from tokenloom.errors import DamagedObjectError, DataValidationError, StoreError, StoreUnavailableError, TokenloomError
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.manifest import TRAINED, manifests
from tokenloom.resources.store.versions import Version
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
    all_lines = list(lines)
    more = len(all_lines) - MAX_LISTED
    return "\n".join([*all_lines[:MAX_LISTED], *([f"… and {more:,} more"] if more > 0 else [])])


@check(LOADED, warns=True)
def answers(checked: Checked) -> Verdict:
    """At most validation.max_unstopped_fraction of the answers lost their stop to tokenizer.max_length."""
    from tokenloom.assets.sequences.answers import ANSWERS, WITHOUT_STOP, unstopped_fraction, unstopped_warning

    counters = checked.build.manifest(LOADED).counters
    count, share = counters.get(ANSWERS, 0), unstopped_fraction(counters)
    warning = unstopped_warning(checked.build.config, counters)
    text = (warning or "").removeprefix("warning: ") or f"{share:.2%} of {count:,} answers lost their stop"
    metadata = {ANSWERS: count, WITHOUT_STOP: counters.get(WITHOUT_STOP, 0), "unstopped_fraction": share}
    return Verdict(warning is None, text, metadata, warns=True)


@check(DECONTAMINATE, warns=True)
def contamination(checked: Checked) -> Verdict:
    """No row that stays contains an item of an evaluation. With `decontaminate.action: drop` such rows are counted."""
    from tokenloom.assets.decontaminate.stage import contained

    build = checked.build
    manifest = build.manifest(DECONTAMINATE)
    counted, rows = contained(manifest.counters), manifest.total("rows_in")
    total = sum(counted.values())
    metadata: dict[str, Any] = {"contaminated": total, "rows_in": rows}
    metadata |= {f"contaminated/{name}": count for name, count in counted.items()}
    if not total:
        return Verdict(True, f"none of {rows:,} rows contains an item of an evaluation", metadata, warns=True)
    metadata["items"] = rejects_table(build.store, manifest)
    text = f"{total:,} of {rows:,} rows contain an item of an evaluation: {reject_reasons(build.store, manifest)}"
    if manifest.total("filtered"):
        return Verdict(True, f"{text}; they are dropped", metadata, warns=True)
    return Verdict(False, f"{text}; they stay, until you set decontaminate.action: drop", metadata, warns=True)


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
        problems = list[str]()
        for chunk in manifest.chunks:
            accounted = chunk.rows_out + chunk.rejected + chunk.filtered
            if chunk.rows_in != accounted:
                problems.append(
                    f"{stage}: {chunk.place(0)}: {chunk.rows_in:,} rows in, but {accounted:,} out, rejected or "
                    "filtered; build from another store, and report this"
                )
        # the tokenizer reads no rows, or only those of `train`
        for above in stage_named(stage).above(checked.build.config)[: stage != TOKENIZERS]:
            passed_on, rows_in = checked.build.manifest(above).total("rows_out"), manifest.total("rows_in")
            if passed_on != rows_in:
                reason = f"{above} passed on {passed_on:,} rows, but {rows_in:,} came in; run both again"
                problems.append(f"{stage}: {reason}")
        metadata = {"chunks": len(manifest.chunks), "rows": manifest.total("rows_out"), "failed_chunks": len(problems)}
        counted = f"{manifest.total('rows_in'):,} rows in, all accounted for in {len(manifest.chunks):,} chunks"
        return Verdict(not problems, listed(problems) or counted, metadata)

    return contract


def _reread(build: Build, manifest: Manifest) -> Verdict:
    stage, store = stage_named(manifest.stage), build.store
    chunks = list(build.engine.map(partial(_check_chunk, stage, store, build.drops(stage)), manifest.chunks, store))
    failures = [failure for chunk in chunks for failure in chunk.failures]
    rows, dropped = sum(chunk.rows for chunk in chunks), sum(chunk.dropped for chunk in chunks)
    metadata = {"chunks": len(chunks), "rows": rows, "failed_chunks": sum(bool(chunk.failures) for chunk in chunks)}
    text = listed(failures) or f"{rows:,} rows reread in {len(chunks) - dropped:,} chunks, none damaged"
    if dropped:
        text += f"\ngc dropped {dropped:,} of {len(chunks):,} chunks, as keep: sequences allows"
    return Verdict(not failures, text, metadata)


def _check_chunk(stage: Stage, store: ArtifactStore, droppable: bool, chunk: ManifestChunk) -> CheckedChunk:
    from tokenloom.assets.stage.definition import validate, validate_rejects

    rows, failures = 0, list[str]()

    def output(table: pa.Table) -> None:
        nonlocal rows
        rows = table.num_rows
        validate(stage, table, by_pandera=True)

    def rejects(table: pa.Table) -> None:
        validate_rejects(table)
        if (stored := count_rejected(table)) != chunk.rejected:
            raise DataValidationError(f"{chunk.rejected:,} rejected rows are recorded, {stored:,} are stored")

    # gc may drop the output, but never what a report needs: rejects and lengths
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


@dataclass(frozen=True)
class Measures:
    """What is compared.

    Args:
        length: mean number of tokens of a row, before truncation and packing.
        trained: trained tokens divided by all tokens of the sequences.
    """

    length: float
    trained: float

    @classmethod
    def of(cls, manifest: Manifest) -> Measures:
        """Return the measures of a manifest of sequences, by its counters."""
        length = manifest.counters.get("tokens_in", 0) / max(manifest.total("rows_in"), 1)
        return cls(length, manifest.counters.get(TRAINED, 0) / max(manifest.total("tokens"), 1))


@check(LOADED, warns=True)
def drift(checked: Checked) -> Verdict:
    """Compared with the previous version of other content, the mean length of a row before truncation changed by at
    most validation.drift.length, relatively, and the trained fraction of the tokens by at most
    validation.drift.trained."""
    build = checked.build
    manifest, allowed = build.manifest(LOADED), build.config.validation.drift
    now = Measures.of(manifest)
    metadata = {"mean_length": now.length, "trained_fraction": now.trained}
    # content that was published again is the same state: an earlier, different one is needed
    if (version := previous_version(build.store, build.name, manifest.digest)) is None:
        return Verdict(True, "no earlier version to compare with", metadata, warns=True)
    try:
        before = Measures.of(build.store.manifest_at(version.stages[LOADED]))
    except StoreUnavailableError:
        raise
    except (StoreError, KeyError):
        return Verdict(True, f"version {version} cannot be read, so nothing is compared", metadata, warns=True)
    # relative, because lengths have no scale of their own; fractions of tokens are compared as they are
    length = abs(now.length - before.length) / before.length if before.length else 0.0
    trained = abs(now.trained - before.trained)
    metadata |= {"length_change": length, "trained_change": trained}
    compared = {
        f"mean length {before.length:,.1f} → {now.length:,.1f} tokens a row": (length, "length", allowed.length),
        f"trained tokens {before.trained:.1%} → {now.trained:.1%}": (trained, "trained", allowed.trained),
    }
    drifted = [
        f"{change} ({found:.1%} apart, above validation.drift.{setting} {most:.1%})"
        for change, (found, setting, most) in compared.items()
        if found > most
    ]
    since = f"since version {version}"
    if not drifted:
        return Verdict(True, f"{', '.join(compared)} {since}", metadata, warns=True)
    shown = f"tokenloom diff {build.name}@{version.digest[:12]} {build.name}"
    return Verdict(False, f"{'; '.join(drifted)} {since}; `{shown}` shows what changed", metadata, warns=True)


def previous_version(store: ArtifactStore, dataset: str, digest: str) -> Version | None:
    """Return the latest version of a dataset whose content has another digest. Reads no more versions than needed."""
    for blob in reversed(store.versions.blobs(dataset)):
        version = store.versions.read(blob.name)
        if version is not None and version.digest != digest:
            return version
    return None


def has_splits(config: PipelineConfig) -> bool:
    """Return whether a dataset can have several splits, by its settings."""
    splits = config.dataset.splits
    return config.dataset.val_split > 0 or splits is None or len(splits) > 1


@check(LOADED, warns=True)
def overlap(checked: Checked) -> Verdict:
    """No row of another split occurs in `train` with the same tokens, as truncated. Reads all sequences when they are
    new; for unchanged sequences the result is looked up."""
    from tokenloom.assets.sequences.shown import shared_rows

    build = checked.build
    manifest = build.manifest(LOADED)
    splits = shared_rows(build.store, build.engine, manifest)
    if not splits:
        return Verdict(True, f"nothing to compare: the only splits are {', '.join(manifest.splits)}", warns=True)
    metadata: dict[str, Any] = {"shared_rows": sum(split.shared for split in splits)}
    for split in splits:
        metadata[f"shared_fraction/{split.split}"] = split.shared / max(split.rows, 1)
    shared = [split for split in splits if split.shared]
    if not shared:
        names = ", ".join(f"{split.rows:,} of {split.split}" for split in splits)
        return Verdict(True, f"no row in common with train: {names}", metadata, warns=True)
    examples = [
        {"split": split.split, "row": place, "also in train": other}
        for split in shared
        for place, other in split.examples[:MAX_LISTED]
    ]
    metadata["examples"] = text_table(examples)
    counts = "; ".join(
        f"{split.shared:,} of {split.rows:,} rows of {split.split} ({split.shared / split.rows:.2%}) are in train too, "
        f"such as {split.examples[0][0]}, which is {split.examples[0][1]}"
        for split in shared
    )
    return Verdict(False, f"{counts}; remove these rows from one of the splits", metadata, warns=True)


@check(LOADED)
def rejects(checked: Checked) -> Verdict:
    """No stage rejects more than validation.max_reject_fraction of its rows. Warns from half of it. A build that
    rejects more fails."""
    build = checked.build
    stages = [stage for stage in build.stages if stage_named(stage).remedies]
    verdicts = build.healing(lambda: [rejected(build.config, build.manifest(stage), build.store) for stage in stages])
    found = [verdict for verdict in verdicts if verdict.metadata["rejected"]]
    count, rows = sum(verdict.metadata["rejected"] for verdict in found), build.manifest(RAW).total("rows_in")
    metadata: dict[str, Any] = {"rejected": count, "rows_in": rows, "reject_fraction": count / max(rows, 1)}
    for verdict in found:
        metadata |= {name: value for name, value in verdict.metadata.items() if name not in metadata}
    failed = [verdict for verdict in found if not verdict.passed]
    text = "\n".join(verdict.description for verdict in failed or found) or f"none of {rows:,} rows rejected"
    return Verdict(not failed, text, metadata, warns=all(verdict.warns for verdict in failed))


def rejected(config: PipelineConfig, manifest: Manifest, store: ArtifactStore) -> Verdict:
    """Check the rejected rows of a stage, also of one that failed because of them.

    Args:
        manifest: its chunks; need not be published.
    """
    count, rows, limit = manifest.total("rejected"), manifest.total("rows_in"), config.validation.max_reject_fraction
    share = count / max(rows, 1)
    metadata: dict[str, Any] = {"rejected": count, "rows_in": rows, "reject_fraction": share}
    if not count:
        return Verdict(True, f"none of {rows:,} rows rejected", metadata)
    fails, warns = count > limit * rows, 2 * count >= limit * rows
    metadata[f"rejected/{manifest.stage}"] = count
    metadata[f"rejects/{manifest.stage}"] = rejects_table(store, manifest)
    allowed = f"more than validation.max_reject_fraction ({limit:g}) allows" if fails else f"{limit:.2%} are allowed"
    text = f"{manifest.stage}: {count:,} of {rows:,} rows ({share:.2%}) rejected, {allowed}: "
    text += reject_reasons(store, manifest)
    if fails:
        text += "; correct the rows, or raise the fraction to build without them"
    return Verdict(not (fails or warns), text, metadata, warns=not fails)


@check(LOADED)
def stored(checked: Checked) -> Verdict:
    """Within a run: every object of the dataset's latest outputs exists, and each output has its size. Run alone or
    scheduled: rereads all bytes of the dataset, its earlier versions too, and removes what is damaged, so that the next
    run computes just those chunks."""
    build = checked.build
    if not checked.report:
        return _reread_all(build)

    def read(stage: str, digest: str) -> Manifest:
        return build.store.manifest_at(digest) if digest else build.manifest(stage)

    latest = [*manifests(((stage, "") for stage in build.stages), read)]
    chunks = [(manifest, chunk) for _, _, manifest in latest for chunk in manifest.chunks]
    missing = [line for lines in build.engine.here.map(partial(_missing, build.store), chunks) for line in lines]
    objects = sum(len(chunk.objects) for _, chunk in chunks)
    text = f"{objects:,} objects of {len(latest)} manifests exist; run this check alone to reread them"
    if missing:
        text = f"{listed(missing)}\nThe next run computes these chunks again."
    return Verdict(not missing, text, {"objects": objects, "faulty": len(missing)})


def _reread_all(build: Build) -> Verdict:
    from tokenloom.resources.store.verify import verify

    result = verify(build.store, build.name, build.engine.here)
    findings = [finding for finding in result.findings if finding.problem != "unknown"]
    metadata = {"objects": result.objects, "bytes": result.bytes, "faulty": len(findings), "dropped": result.dropped}
    if not findings:
        return Verdict(True, f"{result.objects:,} objects reread, none damaged or missing", metadata)
    remedies = []
    if any(finding.latest and finding.kind != "tokenizer" for finding in findings):
        remedies.append("The next run computes these chunks again.")
    if any(finding.kind == "tokenizer" for finding in findings):
        remedies.append("Tokenizer files were restored.")
    if any(not finding.latest for finding in findings):
        remedies.append("An earlier version can only be computed again from its own rows and settings.")
    return Verdict(False, "\n".join([listed(map(str, findings)), *remedies]), metadata)


def _missing(store: ArtifactStore, place: tuple[Manifest, ManifestChunk]) -> list[str]:
    """Return the objects of a chunk that are missing, or whose output has another size."""
    faulty, (manifest, chunk) = list[str](), place
    for kind, digest in chunk.objects.items():
        size = store.objects.size(digest)
        if size is None if kind != "output" else size != chunk.bytes and not (size is None and manifest.droppable):
            what = f"{manifest.dataset}/{manifest.stage}: {kind} of {chunk.place(0)}"
            faulty.append(f"{what} is missing or has another size: {digest}")
    return faulty


@check(PROMPTS, warns=True)
def template(checked: Checked) -> Verdict:
    """The chat template ends each answer with a trained stop token and renders BOS at most once."""
    certificate = checked.build.manifest(PROMPTS).notes.get("certificate")
    if not certificate:
        return Verdict(True, "no chat template renders the rows")
    found = {finding["name"]: finding["found"] for finding in certificate}
    stop = found["stop"]
    problems = [] if stop.startswith("trained") else [f"the stop token after an answer is {stop}"]
    problems += [f"BOS occurs {found['BOS']}"] if found["BOS"].endswith("times") else []
    text = "; ".join(problems) or f"the stop token is {stop}; BOS occurs at most once"
    return Verdict(not problems, text, {"certificate": text_table(certificate)}, warns=True)


def may_be_chat(config: PipelineConfig) -> bool:
    """Return whether a chat template can render the rows. Without a template in the YAML, that depends on the data."""
    prompt = config.prompt_template
    return prompt.template is None and prompt.format_type not in ("completion", "text")


@check(PROMPTS, warns=True)
def turns(checked: Checked) -> Verdict:
    """Each trained turn of a conversation comes after the text that the model has at inference."""
    from tokenloom.assets.prompts.exact import NOT_EXACT, TURNS

    build = checked.build
    counters = build.manifest(PROMPTS).counters
    if TURNS not in counters:
        return Verdict(True, "no chat template renders the rows")
    trained, wrong = counters[TURNS], counters[NOT_EXACT]
    share = wrong / max(trained, 1)
    metadata = {TURNS: trained, NOT_EXACT: wrong, "turns_not_exact_fraction": share}
    if not wrong:
        return Verdict(True, f"{trained:,} trained turns, all as at inference", metadata, warns=True)
    form = form_named(build.manifest(COLUMNS).facts["mapping"]["form"])
    separable = build.config.prompt_template.turns == "together" and not form.judged
    remedy = "set prompt_template.turns: exact" if separable else "the certificate's `turns` says why"
    text = f"{wrong:,} of {trained:,} trained turns ({share:.2%}) differ from what the model has at inference; {remedy}"
    return Verdict(False, text, metadata, warns=True)


def stage_checks(config: PipelineConfig) -> list[StageCheck]:
    """Return the checks of a dataset. Reads no data and imports no stage."""
    of_chats = [template, turns] if may_be_chat(config) else []
    of_evaluations = [contamination] if config.decontaminate is not None else []
    of_splits = [overlap] if has_splits(config) else []
    return [*map(contract, stages_of(config)), *of_chats, *of_evaluations, rejects, answers, drift, *of_splits, stored]
