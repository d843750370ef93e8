"""Which files of a local folder are which split, by the rules of `datasets.load_dataset(folder)` and the folder's
card.

`datasets` takes a second to import, and its functions for this are internal. So the rules are written here, and tests
compare the result with the library's.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from glob import has_magic
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tokenloom.config import DatasetConfig
from tokenloom.config.address import SPLIT_NAME
from tokenloom.config.yaml_file import MOST_NODES, Loader, check_expansion, open_regular, read_small_file
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.resources.sources.hub import LARGEST_CARD
from tokenloom.resources.sources.source_file import FILE_FORMATS, FORMATS, format_of, is_companion

TRAIN = "train"
KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATOR = "[-._ 0-9]"
_SHARD = re.compile(r"data/([^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")

Refuse = Callable[[str], Exception]
"""Returns the error about a folder, given what is wrong with it."""


def _patterns(*forms: str) -> tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]:
    """Return patterns by split; `load_dataset` reads a file once for each one that it matches."""
    return tuple(
        (
            split,
            tuple(re.compile(form.format(word=word, sep=_SEPARATOR), re.DOTALL) for word in words for form in forms),
        )
        for split, words in KEYWORDS.items()
    )


_OF_FILES = _patterns("{word}{sep}.*", ".*{sep}{word}{sep}.*")
_OF_FOLDERS = _patterns("{word}", "{word}{sep}.*", ".*{sep}{word}", ".*{sep}{word}{sep}.*")
_ANY_KEYWORD = re.compile(f"(^|[-._ 0-9/])({'|'.join(chain(*KEYWORDS.values()))})([-._ 0-9/]|$)")

IGNORED = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"}
"""Files that `load_dataset` never reads as data."""

_KNOWN_NOTES = IGNORED - {"config.json", "dummy_data.zip"}
_METADATA = {"metadata.csv", "metadata.jsonl", "metadata.parquet"}
_PREFERRED = (".parquet", ".lance", ".vortex", ".arrow", ".jsonl", ".json", ".csv")
"""Of endings that are equally frequent, the first of these is chosen."""

_READ = {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".txt", ".traj"}
"""Endings that `load_dataset` reads too. Files with others that can be read (`.feather`, `.md`) are read only if a
folder holds none of these."""

OFFICE = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), "a spreadsheet: save each sheet as CSV or Parquet"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pdf", ".pptx"), "a document: save its text as .txt or .jsonl"),
}
"""Endings of files with texts that are not read: what they are, and the remedy."""

_FAMILIES = {"tsv": "csv", "jsonl": "json"}
_ARCHIVES = {".tar", ".tgz", ".zip", ".7z", ".rar", ".tbz2", ".txz", ".lz4"}
_OTHERS = (
    "geoparquet gpq conll conllu xml hdf5 h5 eval lance tsfile vortex fa fasta fna ffn faa frn afa gb gbk genbank "
    "fq fastq pdb ent cif mmcif blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib png "
    "apng jp2 j2k jpc jpf jpx j2c icns ico im iim tif tiff jfif jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw "
    "rgb rgba sgi ras tga icb vda vst webp wmf emf xbm xpm mpg aiff au avr caf flac htk svx mat4 mat5 mpc2k ogg "
    "paf pvf raw rf64 sd2 sds ircam voc w64 wav nist wavex wve xi mp3 opus 3gp 3g2 asf flv m4v webm f4v wmv wma "
    "ogm mxf nut mpeg avi mp4 mov mkv glb gltf ply stl pdf nii"
)
"""Endings of other data that `load_dataset` reads: images, sound, and formats of sciences."""

_UNREAD = {f".{ending}" for ending in _OTHERS.split()}
_DOCUMENT = re.compile(
    r"((readme|licen[cs]e|copying)([-_. ].*)?|notice|authors|contributors|contributing|changelog|citation|requirements)"
    r"\.(txt|text)",
    re.IGNORECASE,
)


def token_format(names: Sequence[str]) -> str | None:
    """Return the format of a folder of token ids, which `load_dataset` does not read: pairs of `.bin` and `.idx`, or
    OLMo-core's arrays."""
    pairs = {name[:-4] for name in names if name[-4:] == ".idx"} & {name[:-4] for name in names if name[-4:] == ".bin"}
    arrays = any(re.fullmatch(r"token_ids_part_.*\.npy", name.rpartition("/")[2]) for name in names)
    return "megatron" if pairs else "flat_tokens" if arrays else None


def of_tokens(names: Sequence[str], kind: str) -> list[str]:
    """Return the files of a format of token ids, without those that belong to another one."""
    endings = (".idx",) if kind == "megatron" else (".npy", ".bin")
    return [name for name in names if name.lower().endswith(endings) and not is_companion(name)]


_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")


def without_images(names: Sequence[str]) -> list[str]:
    """Return the files that are not images by their names."""
    return [name for name in names if not name.lower().endswith(_IMAGES)]


def files_below(folder: Path, hidden: bool = False) -> list[str]:
    """Return all files below a folder, relative to it, sorted; none of stores, and hidden ones only if asked for.

    They are plain strings, for there can be many thousands.
    """
    files, pending = list[str](), [""]
    while pending:
        start = pending.pop()
        with os.scandir(f"{folder}/{start}") as entries:
            inside = list(entries)
        if any(entry.name == "FORMAT" for entry in inside) and _is_store(folder / start):
            continue
        for entry in inside:
            if entry.name.startswith(".") and not hidden:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{start}{entry.name}/")
            elif entry.is_file():
                files.append(start + entry.name)
    return sorted(files)


def _is_store(folder: Path) -> bool:
    with suppress(OSError), open(folder / "FORMAT", "rb", opener=open_regular) as file:
        return file.read(16) == b"tokenloom store "
    return False


def splits_by_name(names: Sequence[str], refuse: Refuse) -> dict[str, list[str]]:
    """Return the files of each split, as the names of files and folders declare them; all `train` if none does.

    Args:
        names: paths relative to the folder, sorted.

    Raises:
        The error of `refuse`: a file is in two splits or matches the name of one twice, which `load_dataset` would read
            twice; or a split's name is not valid.
    """
    names = [name for name in names if _is_requested(name, "") and name.rpartition("/")[2] not in IGNORED]
    shards: dict[str, list[str]] = {}
    for name in names:
        if found := _SHARD.fullmatch(name):
            shards.setdefault(found[1], []).append(name)
    if invalid := next((split for split in shards if not SPLIT_NAME.fullmatch(split)), None):
        message = f"{shards[invalid][0]}: {invalid!r} is not a valid name of a split (letters, digits, _ and .)"
        raise refuse(f"{message}; rename the file")
    if shards:
        return {split: shards[split] for split in dict.fromkeys((*KEYWORDS, *sorted(shards))) if split in shards}
    if logs := [name for name in names if name.endswith(".eval")]:
        return {"logs": logs}
    return named_splits(names, refuse) or {TRAIN: list(names)}


def named_splits(names: Sequence[str], refuse: Refuse | None = None) -> dict[str, list[str]]:
    """Return the files whose folders, or else whose own names, contain the name of a split, in the order of its names.

    Args:
        refuse: called for a file that `load_dataset` would read more than once; None keeps it in the first split.
    """
    # folders decide for all files, if one of them names a split; file names only otherwise
    for patterns, text_of in ((_OF_FOLDERS, posixpath.dirname), (_OF_FILES, posixpath.basename)):
        texts = {text for text in map(text_of, names) if _ANY_KEYWORD.search(text)}
        hits_of = {text: hits for text in texts if (hits := _hits(text, patterns))}
        splits: dict[str, list[tuple[int, str]]] = {split: [] for split in KEYWORDS}
        for name in names if hits_of else ():
            if not (hits := hits_of.get(text_of(name))):
                continue
            if len(hits) > 1 and refuse is not None:
                told = [*dict.fromkeys(split for split, _ in hits)]
                said = " and ".join(told) if len(told) > 1 else f"{told[0]} in two ways"
                message = f"{name}: its name says {said}, so load_dataset reads it twice"
                raise refuse(f"{message}; rename it, or declare the splits in README.md (configs, data_files)")
            split, place = hits[0]
            splits[split].append((place, name))
        if hits_of:
            return {split: [name for _, name in sorted(files)] for split, files in splits.items() if files}
    return {}


def _hits(text: str, patterns: Iterable[tuple[str, tuple[re.Pattern[str], ...]]]) -> list[tuple[str, int]]:
    """Return the split and the place of each pattern that a file name, or one of the folders of a path, matches."""
    parts = text.split("/")
    return [
        (split, place)
        for split, forms in patterns
        for place, form in enumerate(forms)
        if any(map(form.fullmatch, parts))
    ]


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the files that a pattern of `data_files` matches.

    Raises:
        ValueError: the pattern is not valid.
    """
    pattern = posixpath.normpath(pattern)
    if not has_magic(pattern):
        return [name for name in names if name == pattern]
    from fsspec.utils import glob_translate

    accepted = re.compile(glob_translate(pattern))
    ignored = IGNORED - {posixpath.basename(pattern)}
    return [
        name
        for name in names
        if accepted.match(name) and _is_requested(name, pattern) and posixpath.basename(name) not in ignored
    ]


def _is_requested(name: str, pattern: str) -> bool:
    """Return whether a pattern names as many hidden parts, and folders that start with `__`, as the path has."""

    def special(path: str) -> tuple[int, int]:
        parts = PurePosixPath(path).parts
        hidden = sum(part.startswith(".") and set(part) != {"."} for part in parts)
        return hidden, sum(part.startswith("__") for part in parts[:-1])

    # as `datasets` counts them: a pattern that names a hidden part means hidden files
    return not ("__" in name or name.startswith(".") or "/." in name) or special(name) == special(pattern)


def readable(splits: Mapping[str, Sequence[str]], declared: str, refuse: Refuse) -> dict[str, list[str]]:
    """Return the files of each split that are read: those of the most frequent format, without documentation.

    Args:
        declared: `dataset.format`; files of this format are chosen if there are any.

    Raises:
        The error of `refuse`: most files are of a kind that is not read, or the splits have different formats.
    """
    chosen, endings = dict[str, list[str]](), dict[str, str]()
    families = {_family(declared), *(FILE_FORMATS[declared].sessions if declared in FILE_FORMATS else ())}
    for split, names in splits.items():
        kinds = {name: _family(kind) for name in names if (kind := format_of(name)) and _is_known(name)}
        if declared != "auto" and (own := [name for name in kinds if kinds[name] in families]):
            chosen[split] = own
        elif ending := _most_frequent(names):
            if ending in _UNREAD:
                raise refuse(f"most of its data are {ending} files, which are not read; name the files to read")
            endings[split] = _family(FORMATS[ending])
            chosen[split] = [name for name in kinds if kinds[name] == endings[split]]
        else:
            chosen[split] = [name for name in names if format_of(name)]
    if len({*endings.values()}) > 1:
        listed = ", ".join(f"{split}: {kind}" for split, kind in endings.items())
        raise refuse(f"its splits have different formats ({listed}); name the files of one of them")
    data = {*without_documents([*chain(*chosen.values())])}
    by_split = {split: [name for name in names if name in data] for split, names in chosen.items()}
    return {split: names for split, names in by_split.items() if names}


def _most_frequent(names: Sequence[str]) -> str | None:
    """Return the ending that decides what is read; None if `load_dataset` knows none of the files."""
    counts = Counter(
        (f".{part}".lower(), base in _METADATA)
        for base in (name.rpartition("/")[2] for name in names if _is_known(name))
        for part in base.split(".")[1:]
    )

    def rank(counted: tuple[str, bool]) -> tuple[object, ...]:
        ending, metadata = counted
        # as `datasets` breaks ties: data before metadata, then frequency, then its list of endings
        return (not metadata, counts[counted], *(ending == other for other in _PREFERRED), ending)

    return next((ending for ending, _ in sorted(counts, key=rank, reverse=True) if ending in _READ | _UNREAD), None)


def _is_known(name: str) -> bool:
    return _have_known(name.rpartition("/")[2].partition(".")[2])


@lru_cache(4096)
def _have_known(endings: str) -> bool:
    return any(f".{part}" in _READ or f".{part.lower()}" in _UNREAD for part in endings.split("."))


def _family(kind: str) -> str:
    return _FAMILIES.get(kind, kind)


def without_documents(names: Sequence[str]) -> list[str]:
    """Return the files without Markdown, or texts such as `LICENSE.txt`, unless there are no others."""
    no_markdown = [name for name in names if not name.lower().endswith(".md")] or list(names)
    return [name for name in no_markdown if not _DOCUMENT.fullmatch(name.rpartition("/")[2])] or no_markdown


def left_out(names: Sequence[str], read: Iterable[str], splits: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Return a sentence about the data, archives and documentation that are not read, if there are any.

    Args:
        splits: the files of each split; None: all files are in one.
    """
    used = {*read}
    placed = {*names} if splits is None else {name for files in splits.values() for name in files}
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name in used or (base := name.rpartition("/")[2]) in _KNOWN_NOTES:
            continue
        endings = {f".{part}".lower() for part in base.split(".")[1:]}
        if not endings & (FORMATS.keys() | OFFICE.keys() | _UNREAD | _ARCHIVES):
            continue
        if endings & _ARCHIVES:
            reason = "archives, which are not unpacked"
        elif office := next((OFFICE[ending] for ending in sorted(endings) if ending in OFFICE), None):
            reason = office
        elif base.lower().endswith(".md") or _DOCUMENT.fullmatch(base):
            reason = "documentation"
        elif name not in placed:
            reason = "in no split"
        else:
            reason = "another format"
        reasons.setdefault(reason, []).append(name)
    told = "; ".join(f"{listed(files)} ({reason})" for reason, files in reasons.items())
    return [f"not read: {told}"] if told else []


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


CARDS = ("README.md", ".huggingface.yaml")
_BLOCK = re.compile(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))")
_WITHOUT_EFFECT = re.compile(
    "config_name|data_files|data_dir|default|version|description|drop_labels|drop_metadata|batch_size|chunksize"
)
"""Parameters that change no row."""

_SETTINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "sep": ("reader.delimiter", str),
    "delimiter": ("reader.delimiter", str),
    "encoding": ("encoding", str),
    "field": ("reader.root", lambda value: f"{value}[]"),
    "sample_by": ("reader.lines_per_row", lambda value: {"document": "file"}.get(value, value)),
    "columns": ("columns", tuple),
}
"""The setting of `dataset` that says the same as a parameter, and its value."""


@dataclass(frozen=True)
class CardConfig:
    """A config of a card.

    Args:
        name: its name.
        folder: the folder of its files, relative to that of the card; empty for the same.
        patterns: by split, the patterns of its files; None: the names of the files declare the splits.
        parameters: parameters of the reader.
    """

    name: str
    folder: str = ""
    patterns: Mapping[str, Sequence[str]] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names_hidden(self) -> bool:
        """Whether a pattern names hidden files or folders."""
        texts = [text for patterns in (self.patterns or {}).values() for text in patterns]
        return any(part.startswith(".") and part.strip(".") for text in texts for part in text.split("/"))

    def files(self, names: Sequence[str], refuse: Refuse) -> dict[str, list[str]]:
        """Return the files of each split that the card lists.

        Raises:
            The error of `refuse`: a pattern is not valid or matches no file, or a file is listed twice.
        """
        splits: dict[str, list[str]] = {}
        for split, patterns in (self.patterns or {}).items():
            for pattern in patterns:
                if "://" in pattern or pattern.startswith(("/", "..")):
                    raise refuse(f"config {self.name}: {pattern} is not in the folder; copy its files there")
                try:
                    files = matching(pattern, names)
                except ValueError as error:
                    raise refuse(f"config {self.name}: {pattern}: {error}") from None
                if not files and not has_magic(pattern):
                    raise refuse(f"config {self.name}: no file {pattern}{did_you_mean(pattern, names)}")
                splits.setdefault(split, []).extend(files)
            if not splits.get(split):
                raise refuse(f"config {self.name}: no file matches {', '.join(patterns)}, the files of {split}")
        places: dict[str, str] = {}
        for split, files in splits.items():
            for name in files:
                if name in places:
                    both = "twice" if places[name] == split else f"in {places[name]} and {split}"
                    raise refuse(f"config {self.name} lists {name} {both}; list it once")
                places[name] = split
        return splits

    def refuse_parameters(self, dataset: DatasetConfig, usual: str | None, refuse: Refuse) -> None:
        """Refuse parameters that change how files are read, unless the settings say the same.

        Args:
            usual: the delimiter of the files' format.
        """
        for name, value in self.parameters.items():
            if _WITHOUT_EFFECT.fullmatch(name) or (name in ("sep", "delimiter") and value == usual):
                continue
            if name not in _SETTINGS:
                raise refuse(f"config {self.name} sets {name}, which is not supported; name the files themselves")
            setting, translate = _SETTINGS[name]
            owner, _, last = setting.rpartition(".")
            if getattr(dataset.reader if owner else dataset, last) != translate(value):
                shown = [*translate(value)] if isinstance(value, list) else translate(value)
                raise refuse(f"config {self.name} sets {name}: {value!r}; set dataset.{setting}: {shown!r}")


def card_configs(folder: Path, refuse: Refuse) -> list[CardConfig]:
    """Return the configs that a folder's card declares; most cards declare none.

    Raises:
        The error of `refuse`: the card cannot be read, or is not valid.
    """
    card: dict[str, Any] = {}
    for name in CARDS:
        if not (folder / name).is_file():
            continue
        try:
            text = read_small_file(folder / name, LARGEST_CARD).decode(errors="replace")
            block = text if name.endswith(".yaml") else (found[2] if (found := _BLOCK.search(text)) else "")
            # most cards declare none: their YAML is never parsed
            if "configs" not in block:
                continue
            check_expansion(block, name, max(MOST_NODES, len(block)))
            content = yaml.load(block, Loader=Loader)  # a safe loader
        except (ConfigError, OSError, yaml.YAMLError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise refuse(f"its {name}: {reason}") from None
        card |= content if isinstance(content, dict) else {}
    configs = card.get("configs") or []
    if not isinstance(configs, list) or not all(isinstance(each, dict) for each in configs):
        raise refuse("its README.md: configs must be a list of mappings with config_name")
    declared = [_config(each, refuse) for each in configs]
    if len({each.name for each in declared}) < len(declared):
        raise refuse("its README.md: two configs have the same config_name")
    return declared


def _config(declared: Mapping[str, Any], refuse: Refuse) -> CardConfig:
    name = declared.get("config_name")
    if not isinstance(name, str) or not name:
        raise refuse(f"its README.md: each config must have a config_name, a text; got {name!r}")
    folder = declared.get("data_dir") or ""
    normal = posixpath.normpath(folder) if isinstance(folder, str) and folder else ""
    if not isinstance(folder, str) or normal.startswith(("/", "..")):
        raise refuse(f"config {name}: data_dir must be a folder below that of README.md, got {folder!r}")
    patterns = _patterns_of_splits(name, declared.get("data_files"), refuse)
    return CardConfig(name, "" if normal == "." else normal, patterns, declared)


def _patterns_of_splits(name: str, files: Any, refuse: Refuse) -> dict[str, list[str]] | None:
    """Return the patterns of each split: `data_files` can be a text, a list of texts, or of `{split, path}`."""
    if files is None:
        return None
    given = [files] if isinstance(files, str) else files
    if isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        return {TRAIN: given}
    patterns: dict[str, list[str]] = {}
    for each in given if isinstance(given, list) and given else [None]:
        split, path = (each.get("split"), each.get("path")) if isinstance(each, dict) else (None, None)
        paths = [path] if isinstance(path, str) else path
        valid = isinstance(split, str) and SPLIT_NAME.fullmatch(split) and isinstance(paths, list) and paths
        if not valid or not all(isinstance(path, str) for path in paths or ()) or split in patterns:
            expected = "a path, a list of paths, or a list of {split, path} with different splits"
            raise refuse(f"config {name}: data_files must be {expected}, got {files!r}")
        patterns[str(split)] = list(paths or ())
    return patterns


def chosen_config(
    configs: Sequence[CardConfig], wanted: str | None, declared: Callable[[str], Exception], refuse: Refuse
) -> CardConfig:
    """Return the config that is read; one without a name if the card declares none.

    Args:
        wanted: `dataset.config`.
        declared: returns the error about `dataset.config`.
        refuse: returns the error about the folder.
    """
    names = [each.name for each in configs]
    if wanted is not None and configs:
        if wanted not in names:
            raise declared(f"no config {wanted!r}; README.md declares {', '.join(names)}{did_you_mean(wanted, names)}")
        return configs[names.index(wanted)]
    default = [one for one in configs if len(configs) == 1 or one.name == "default" or one.parameters.get("default")]
    if len(default) > 1:
        both = ", ".join(each.name for each in default)
        raise refuse(f"its README.md declares several default configs: {both}; set dataset.config")
    if configs and not default:
        raise declared(f"README.md declares several configs; set it to one of {', '.join(names)}")
    return default[0] if default else CardConfig("")
