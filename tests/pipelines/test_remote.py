"""Remote files, read with fsspec from a local S3 server and over HTTP."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from support.raw_rows import Row, read
from tokenloom.errors import SourceUnavailableError, TokenloomError

ROWS: list[Row] = [{"a": f"row {index}"} for index in range(300)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
SECRET = "sEcReTsEcReT"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket with the rows in three files, one of them in a folder, and a file that is not data."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client: Any = boto3.client("s3")
        client.create_bucket(Bucket="corpus")
        table = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ROWS), table)
        files = {"1.jsonl": LINES, "2.jsonl.gz": gzip.compress(LINES), "deep/3.parquet": table.getvalue().to_pybytes()}
        for name, content in {**files, "README.md": b"no data"}.items():
            client.put_object(Bucket="corpus", Key=f"rows/{name}", Body=content)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield "s3://corpus/rows"
    server.stop()


@pytest.mark.parametrize(
    ("name", "files"),
    [("1.jsonl", 1), ("2.jsonl.gz", 1), ("deep/3.parquet", 1), ("*.jsonl*", 2), ("**/*.parquet", 1), ("", 3)],
)
def test_files_globs_and_folders_of_a_bucket_are_read(bucket: str, name: str, files: int) -> None:
    assert read(f"{bucket}/{name}") == (ROWS * files, [], 0)


@pytest.mark.parametrize("name", ["none.jsonl", "*.csv", "empty/"])
def test_missing_files_are_reported_in_one_sentence_without_secrets(bucket: str, name: str) -> None:
    with pytest.raises(TokenloomError) as raised:
        read(f"{bucket}/{name}")
    assert name.strip("*/") in str(raised.value) and SECRET not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_compressed_file_is_read_over_http(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(LINES))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert read(f"http://127.0.0.1:{server.server_port}/rows.jsonl.gz?token={SECRET}") == (ROWS, [], 0)
        with pytest.raises(TokenloomError) as raised:
            read(f"http://127.0.0.1:{server.server_port}/none.jsonl?token={SECRET}")
        assert SECRET not in str(raised.value)
        server.shutdown()


@pytest.mark.parametrize("host", ["localhost:1", "nosuchhost.invalid"])
def test_an_unreachable_server_is_not_reported_as_a_missing_file(host: str) -> None:
    with pytest.raises(SourceUnavailableError, match=r"x\.jsonl: the server is unreachable"):
        read(f"http://{host}/x.jsonl?token={SECRET}")
