"""Shared fixtures, and what makes two runs of the suite the same: fixed seeds and a Hypothesis profile without chance.

A soak selects the profile that explores: more examples, drawn at random, failures kept in `.hypothesis/`.
`--shuffle SEED` runs the files, and the cases of each file, in a random order: no case depends on another.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

# Before NumPy and torch are imported, and for the processes that tests start: threads that wait for work do so busily,
# and take the cores from other processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

pytest.register_assert_rewrite("support")

from support.own_home import empty_home, homes, move_in  # noqa: E402

move_in()  # before libraries are imported that read the home folder and the environment

import numpy as np  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from tokenizers import Tokenizer, processors  # noqa: E402
from torch._utils import ExceptionWrapper  # noqa: E402

os.environ["TOKENLOOM_CHECK_BOUNDS"] = "1"  # before the loaders are imported

from support.masked_platform import MASKED, mask  # noqa: E402
from support.ray_cluster import LOOPBACK  # noqa: E402
from support.small_tokenizers import SaveTokenizer, WriteConfig, byte_level  # noqa: E402
from support.soak import NO_REAL_DATA, REAL_DATA, SOAK, smoke, sweep  # noqa: E402
from support.stray_processes import tie_to_this_process  # noqa: E402

torch.set_num_threads(1)  # sums have a fixed order
if MASKED:
    mask()
os.environ.update(LOOPBACK)  # Ray reads it when it is imported, which other libraries do, too
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process that a test starts compiles all that it imports
sys.dont_write_bytecode = False  # or every process of pytest-xdist rewrites the assertions of all tests

multiprocessing.set_forkserver_preload(["tokenloom.loaders", "torch.utils.data"])
"""Workers of the method `forkserver` inherit no memory, as those of `spawn`, but do not import everything again."""

if not SOAK:
    os.fsync = os.fstat  # pyright: ignore[reportAttributeAccessIssue]  # no test cuts the power; a sync waits for the disk


def pytest_collection_finish() -> None:
    """Exempt the collected tests and the imported libraries from garbage collection: walking over them again and again
    takes half the time of the tests that train."""
    gc.collect()
    gc.freeze()


_reraise = ExceptionWrapper.reraise


def _reraise_without_cycle(self: ExceptionWrapper) -> NoReturn:
    """Raise a worker's error without the cycle of torch's frame and error: if only the garbage collector ends the
    iterator of a `DataLoader`, its queues end first, and it waits 5 seconds for each worker."""
    try:
        _reraise(self)
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904


ExceptionWrapper.reraise = _reraise_without_cycle

LONG = (
    "assets/dagster/test_daemon.py",
    "assets/building/test_ray_builds.py",
    "assets/building/test_ray_reading.py",
    "assets/dagster/test_component.py",
    "trainer/test_ranks.py",
    "resources/store/test_bucket.py",
    "pipelines/test_hub.py",
    "assets/dagster/test_browser.py",
    "assets/building/test_kills.py",
    "loaders/test_torchrun.py",
    "trainer/test_spikes.py",
    "trainer/test_images.py",
    "trainer/test_trees.py",
    "trainer/test_resume.py",
    "assets/dagster/test_embedding.py",
    "loaders/frameworks/test_frameworks.py",
    "resources/engines/test_scale_page.py",
    "test_install.py",
    "resources/engines/test_ray_engine.py",
    "test_docs.py",
    "assets/dagster/test_dagster_ui.py",
    "golden/test_golden.py",
    "resources/templates/test_sandbox.py",
    "loaders/on_the_fly/test_preprocessed.py",
    "resources/store/test_verify.py",
    "loaders/on_the_fly/test_row_stream.py",
    "assets/building/test_incremental.py",
    "assets/dedup/test_stage.py",
    "assets/tokens/test_tokens.py",
    "pipelines/images/test_image_caching.py",
    "pipelines/test_keys.py",
    "assets/dagster/test_dagster.py",
    "cli/test_export_layouts.py",
)
"""Files that take longest, about in this order; `scripts/test_times.py` measures them."""

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fixed", deadline=None, max_examples=50, suppress_health_check=_QUIET, derandomize=True, database=None
)
settings.register_profile("soak", deadline=None, max_examples=1000, suppress_health_check=_QUIET, print_blob=True)
settings.load_profile("soak" if SOAK else "fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist run files in the order of collection; by default, it runs files with few tests last."""
    config.option.loadscopereorder = False
    _reset_signals()  # for the processes that fixtures of modules start
    tie_to_this_process(homes())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the cases of each, in a random order")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases on real data as sweeps, of which `.ci/run` runs those that have no such mark of their own.

    Order the files: at random, or the longest first, so that the short files at the end keep all processes busy.
    """
    folder = Path(__file__).parent
    places: dict[Path, float] = {folder / name: place for place, name in enumerate(LONG)}
    if seed := config.getoption("--shuffle"):
        chance = random.Random(seed)
        chance.shuffle(items)
        places = {path: chance.random() for path in dict.fromkeys(item.path for item in items)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            if item.get_closest_marker("sweep") is None:
                item.add_marker(smoke)
            item.add_marker(sweep)


@pytest.fixture(autouse=True)
def signals() -> None:
    """Let the processes that a test starts end at SIGINT and SIGTERM, also if the suite runs in the background or a
    library used in an earlier test ignores or blocks them."""
    _reset_signals()


def _reset_signals() -> None:
    interrupts = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts)
    for number, handler in zip(interrupts, (signal.default_int_handler, signal.SIG_DFL), strict=True):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def own_home() -> None:
    """Give each test an empty home folder."""
    empty_home()


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed the global generators, so that a test's draws do not depend on the tests before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files in `$TOKENLOOM_REAL_DATA`; skips the test if it is not set."""
    if REAL_DATA is None:
        pytest.skip(NO_REAL_DATA)
    return REAL_DATA


@pytest.fixture(scope="session")
def write_config() -> WriteConfig:
    """A function that writes sections to `folder/name.yaml` and returns its path."""

    def write(folder: Path, name: str = "data", **sections: Any) -> Path:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def save_tokenizer() -> SaveTokenizer:
    """A function that saves a tokenizer as a folder that `from_pretrained` loads and returns the folder."""

    def save(tokenizer: Tokenizer, folder: Path, **config: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        saved = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(saved), encoding="utf-8")
        return folder

    return save


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: SaveTokenizer) -> Path:
    """A byte-level BPE tokenizer with many control tokens that adds no token by itself."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
    return save_tokenizer(byte_level(), tmp_path_factory.mktemp("tokenizer"), **names)


@pytest.fixture(scope="session")
def bos_tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: SaveTokenizer) -> Path:
    """The tokenizer of `tokenizer_folder`, but with BOS before every text."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
    return save_tokenizer(tokenizer, tmp_path_factory.mktemp("bos_tokenizer"), **names)
