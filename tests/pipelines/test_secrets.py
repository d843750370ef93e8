"""Secrets in addresses and in the environment: no message, log, store, state or metadata shows one."""

from __future__ import annotations

import json
import pickle
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest

from support.dagster_project import SECTIONS
from tokenloom import DataPipeline
from tokenloom.cli.main import main
from tokenloom.config import PipelineConfig
from tokenloom.dagster import StoreResource, dataset_definitions
from tokenloom.errors import ConfigError, StoreAddressError, TokenloomError, redacted
from tokenloom.resources.store import ArtifactStore

USER, SECRET = "AKIAuSeRuSeR", "sEc/ReT+sEcReT"
PARTS = ("uSeRuSeR", "ReT+sEcReT", "ReT%2BsEcReT", "sEc%2FReT")
ROWS = "".join(json.dumps({"instruction": f"q{n}", "input": "", "output": f"a {n}"}) + "\n" for n in range(40)).encode()
ADDRESSES = {
    f"s3://{USER}:{SECRET}@bucket/x.jsonl": "s3://…@bucket/x.jsonl",
    f"s3://{USER}:{SECRET}/bucket/x.jsonl": None,
    f"s3://{USER}@bucket/x.jsonl": "s3://…@bucket/x.jsonl",
    f"https://u:{SECRET}@host/a@b/x.jsonl": None,
    f"https://u:p@{SECRET.replace('/', '')}@host/x.jsonl": "https://…@host/x.jsonl",
    f"https://host/x.jsonl?X-Amz-Signature={SECRET}&n=1": "https://host/x.jsonl?…",
    f"https://host/x.jsonl#{SECRET}": "https://host/x.jsonl#…",
    f"zip://x.jsonl::https://u:{USER}@host/x.zip": "zip://x.jsonl::https://…@host/x.zip",
    f"simplecache::s3://{USER}:{SECRET}@bucket/x": None,
    "https://host:8080/a@b/x.jsonl": "https://host:8080/a@b/x.jsonl",
    "s3://bucket/rows@2024/x:1.jsonl": "s3://bucket/rows@2024/x:1.jsonl",
    "hf://datasets/me/it@main/x.jsonl": "hf://datasets/me/it@main/x.jsonl",
    "abfs://box@account.dfs.core.windows.net/x": "abfs://…@account.dfs.core.windows.net/x",
}


def is_clean(text: str | bytes) -> bool:
    found = text.decode(errors="replace") if isinstance(text, bytes) else text
    return not any(part in found for part in PARTS)


def assert_clean_folder(folder: Path) -> None:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert is_clean(path.read_bytes()), path
        assert is_clean(str(path))


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_text_shows_the_host_and_path_of_an_address_only(address: str) -> None:
    for text in (address, f"cannot open {address}", f"{address}: no", f"'{address}', '{address}'", f"[{address}]"):
        assert is_clean(redacted(text)), redacted(text)
        assert redacted(redacted(text)) == redacted(text)
    if (shown := ADDRESSES[address]) is not None:
        assert redacted(address) == shown
        assert redacted(f"see {address}, now") in (f"see {shown}, now", f"see {shown} now")
    assert is_clean(str(TokenloomError(f"at {address}")))
    assert is_clean(pickle.dumps(ConfigError.at(address, address)))


class Presigned(BaseHTTPRequestHandler):
    """Serves the rows to who knows the secret: as a query, or as a password."""

    def do_GET(self) -> None:
        known = "sEc/ReT" in unquote(self.path) or self.headers.get("Authorization", "") != ""
        self.send_response(403 if not known else 200 if "x.jsonl" in self.path else 404)
        body = ROWS if known else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Presigned) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def config_of(folder: Path, address: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(json.dumps({**SECTIONS, "dataset": {"name": address}}))
    return folder / "toy.yaml"


def test_a_presigned_url_is_read_and_only_its_host_and_path_are_kept(host: str, tmp_path: Path) -> None:
    digests = set[str]()
    urls = [f"http://{host}/x.jsonl?sig=sEc%2FReT", f"http://{host}/x.jsonl?sig=sEc%2FReT%2BsEcReT&e=9"]
    urls.append(f"http://{USER}:sEc%2FReT@{host}/x.jsonl")
    for url in urls:
        config = config_of(tmp_path / "yaml", url)
        loaded = PipelineConfig.from_file(config)
        assert is_clean(repr(loaded) + str(loaded.dataset.name) + loaded.model_dump_json() + loaded.dataset.name)
        pipeline = DataPipeline.from_config(config, tmp_path / "store").unwrap()
        digests.add(pipeline.get_dataset().unwrap().digest)
    assert len(digests) == 1
    assert_clean_folder(tmp_path / "store")


@pytest.mark.parametrize(
    "path", ["none.jsonl?sig=sEc%2FReT%2BsEcReT", "x.jsonl?sig=ReT%2BsEcReT", "y.parquet?q=ReT%2BsEcReT"]
)
def test_errors_of_a_url_show_no_secret_even_with_their_causes(host: str, tmp_path: Path, path: str) -> None:
    config = config_of(tmp_path / "yaml", f"http://{host}/{path}")
    with pytest.raises(TokenloomError) as raised:
        DataPipeline.from_config(config, tmp_path / "store").unwrap().get_dataset().unwrap()
    assert len(str(raised.value).splitlines()) == 1
    assert is_clean("".join(traceback.format_exception(raised.value)))


REFUSED = [f"s3://{USER}:{SECRET}@bucket/x.jsonl", f"s3://{USER}:{SECRET}/bucket/x.jsonl", f"gs://{USER}@bucket/x"]
REFUSED += [f"simplecache::s3://{USER}:{SECRET}@bucket/x", f"s3a://{USER}:{SECRET}@bucket/*.jsonl"]


@pytest.mark.parametrize("address", REFUSED)
def test_credentials_in_the_address_of_a_bucket_are_refused_with_a_remedy(tmp_path: Path, address: str) -> None:
    config = config_of(tmp_path, address)
    with pytest.raises(ConfigError, match=r"toy.yaml:1: dataset.name: .*AWS_PROFILE") as raised:
        PipelineConfig.from_file(config)
    assert is_clean("".join(traceback.format_exception(raised.value)))
    with pytest.raises(StoreAddressError) as refused:
        ArtifactStore(address)
    assert is_clean("".join(traceback.format_exception(refused.value)))


ADDRESSED = {("dataset", "name"), ("tokenizer", "name_or_path"), ("tokenizer", "chat_template")}
ADDRESSED |= {("prompt_template", "tools"), ("prompt_template", "few_shot")}
"""Settings that take a path or an address; others are recorded as they are."""

SETTINGS = [
    ("dataset", "name"), ("dataset", "config"), ("dataset", "revision"), ("dataset", "format"), ("dataset", "splits"),
    ("tokenizer", "name_or_path"), ("tokenizer", "chat_template"), ("tokenizer", "padding"),
    ("prompt_template", "tools"), ("prompt_template", "label_column"), ("prompt_template", "unknown"),
    ("prompt_template", "few_shot"), ("prompt_template", "format_type"), ("schedule", ""), ("name", ""),
]  # fmt: skip


@pytest.mark.parametrize("address", [REFUSED[0], f"ftp://u:{SECRET}@nosuchhost.invalid/x?{USER}"])
def test_no_command_shows_a_secret_of_any_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tokenizer_folder: Path, address: str
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    store = str(tmp_path / "store")
    for section, name in SETTINGS:
        settings: dict[str, Any] = json.loads(json.dumps(SECTIONS)) | {"dataset": {"name": "rows.jsonl"}}
        settings["tokenizer"] = {"name_or_path": str(tokenizer_folder), "max_length": 64}
        value = {"source": address, "count": 1} if name == "few_shot" else address
        settings[section] = {**settings.get(section, {}), name: value} if name else value
        (tmp_path / "toy.yaml").write_text(json.dumps(settings))
        main(["build", str(tmp_path / "toy.yaml"), "--store", store if (section, name) in ADDRESSED else f"{store}2"])
    for arguments in (["inspect", address, "--store", store], ["build", address], ["gc", "--store", address],
                      ["verify", address, "--store", store], ["versions", "toy", "--store", address],
                      ["inspect", str(tmp_path / "rows.jsonl"), "--tokenizer", address, "--store", store]):  # fmt: skip
        assert main(arguments) > 0
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err
    assert [line for line in (shown.out + shown.err).splitlines() if not is_clean(line)] == []
    assert_clean_folder(tmp_path / "store")


def test_tokens_of_the_environment_are_neither_printed_nor_stored(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"{USER}{SECRET}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{USER}:sEc%2FReT@127.0.0.1:1")
    monkeypatch.setattr("tokenloom.resources.store.blobs.bucket.FIRST_WAIT", 0.001)
    monkeypatch.chdir(tmp_path)
    url, store = f"http://{host}/x.jsonl?sig=sEc%2FReT", tmp_path / "store"
    config = str(config_of(tmp_path / "yaml", url))
    for address, succeeds in ((str(store), True), (f"s3://{USER}:{SECRET}@bucket", False), ("s3://bucket", False)):
        monkeypatch.setenv("TOKENLOOM_STORE", address)
        assert (main(["build", config]) == 0) == succeeds
        assert (main(["inspect", url, "--out", "-"]) == 0) == succeeds
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err
    assert [line for line in (shown.out + shown.err).splitlines() if not is_clean(line)] == []
    assert_clean_folder(store)


def test_dagster_shows_no_secret(host: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path, succeeds in (("x.jsonl?sig=sEc%2FReT%2BsEcReT", True), ("x.jsonl?sig=ReT%2BsEcReT", False)):
        config = PipelineConfig.from_file(config_of(tmp_path, f"http://{host}/{path}"))
        resources = {"store": StoreResource(root=str(tmp_path / f"store{succeeds}"))}
        shared = dg.Definitions(resources=resources, executor=dg.in_process_executor)
        definitions = dg.Definitions.merge(dataset_definitions(config), shared)
        (tmp_path / "dagster").mkdir(exist_ok=True)
        with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
            job = definitions.resolve_implicit_global_asset_job_def()
            only = [key for key in job.asset_layer.executable_asset_keys if key.path[-1] == "raw"]
            result = job.execute_in_process(instance=instance, raise_on_error=False, asset_selection=only)
            assert result.success == succeeds
            assert only
            for event in instance.all_logs(result.run_id):
                assert is_clean(event.to_json()), event
    shown = capfd.readouterr()
    assert is_clean(shown.out + shown.err)
    for folder in ("storeTrue", "storeFalse", "dagster"):
        assert_clean_folder(tmp_path / folder)
