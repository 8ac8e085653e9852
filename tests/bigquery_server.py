"""A loopback BigQuery: what google-cloud-bigquery asks of it to load small files. What else is asked gets a 501."""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

PAGE_ROWS = 10
"""Rows in one answer of tabledata.list: few, so that a table takes several."""
TYPES = {"INTEGER": pa.int32(), "DATE": pa.date32(), "STRING": pa.string()}

type Json = dict[str, Any]


class RefusedError(Exception):
    """The request is answered with this status and message, its arguments."""


class BigQueryServer:
    """Data sets, tables and jobs of one project."""

    def __init__(self, project: str, dataset: str) -> None:
        self.project, self.dataset, self.url = project, dataset, ""
        self.tables: dict[str, tuple[Json, pa.Table]] = {}
        """Resource and rows of each table that is there."""
        self.made: list[Json] = []
        self.jobs: dict[str, Json] = {}
        self.authorizations: set[str | None] = set()
        self.unexpected: list[str] = []
        self.job_error: str | None = None
        self.lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[BigQueryServer]:
        """Answers on a free port of loopback for as long as the block lasts."""
        with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bigquery": self})) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def answer(self, method: str, path: str, query: dict[str, str], sent_range: str, body: bytes) -> Json | None:
        """The answer to a request, or None for one without content; raises RefusedError."""
        base = f"/bigquery/v2/projects/{self.project}"
        tables = f"{base}/datasets/{self.dataset}/tables"
        known: dict[str, Callable[..., Json | None]] = {
            f"GET {base}/datasets/([^/]+)": self._dataset,
            f"POST {tables}": lambda: self._create(json.loads(body)),
            f"GET {tables}/([^/]+)": lambda name: self._table(name)[0],
            f"DELETE {tables}/([^/]+)": lambda name: self.tables.pop(name) and None,
            f"GET {tables}/([^/]+)/data": lambda name: self._data(name, int(query.get("pageToken", 0))),
            f"POST /upload{base}/jobs": lambda: self._begin(json.loads(body)),
            f"PUT /upload{base}/jobs": lambda: self._receive(self.jobs[query["upload_id"]], sent_range, body),
            f"GET {base}/jobs/([^/]+)": lambda name: self.jobs[name],
        }
        for pattern, function in known.items():
            if matched := re.fullmatch(pattern, f"{method} {path}"):
                return function(*matched.groups())
        self.unexpected.append(f"{method} {path}")
        raise RefusedError(501, f"{method} {path} is not spoken here")

    def _dataset(self, name: str) -> Json:
        _require(name == self.dataset, f"Not found: Dataset {self.project}:{name}", 404)
        return {"datasetReference": {"projectId": self.project, "datasetId": name}}

    def _create(self, resource: Json) -> Json:
        schema = pa.schema([(one["name"], TYPES[one["type"]]) for one in resource["schema"]["fields"]])
        self.tables[resource["tableReference"]["tableId"]] = resource, schema.empty_table()
        self.made.append(resource)
        return resource

    def _table(self, name: str) -> tuple[Json, pa.Table]:
        _require(name in self.tables, f"Not found: Table {name}", 404)
        return self.tables[name]

    def _data(self, name: str, start: int) -> Json:
        rows = self._table(name)[1]
        page = rows.slice(start, PAGE_ROWS).to_pylist()
        shown = [{"f": [{"v": None if value is None else str(value)} for value in row.values()]} for row in page]
        following = {"pageToken": str(start + PAGE_ROWS)} if start + PAGE_ROWS < rows.num_rows else {}
        return {"totalRows": str(rows.num_rows), "rows": shown} | following

    # Resumable uploads of one chunk: https://cloud.google.com/bigquery/docs/reference/api-uploads

    def _begin(self, job: Json) -> Json:
        name = job["jobReference"]["jobId"]
        self.jobs[name] = job
        path = f"/upload/bigquery/v2/projects/{self.project}/jobs?uploadType=resumable&upload_id={name}"
        return {"location": self.url + path}

    def _receive(self, job: Json, sent_range: str, body: bytes) -> Json:
        _require(sent_range == f"bytes 0-{len(body) - 1}/{len(body)}", f"not whole: {sent_range}")
        _require("status" not in job, "these bytes are there")
        job["status"] = {"state": "DONE"}
        try:
            self._load(job["configuration"]["load"], body)
        except Exception as error:  # noqa: BLE001  whatever is wrong with a file is the job's error
            found = {"reason": "invalid", "message": f"{error}"}
            job["status"] |= {"errorResult": found, "errors": [found]}
        return job | {"status": {"state": "RUNNING"}}

    def _load(self, load: Json, content: bytes) -> None:
        _require(self.job_error is None, self.job_error or "")
        dispositions = load["createDisposition"], load["writeDisposition"]
        _require(dispositions == ("CREATE_NEVER", "WRITE_APPEND"), "disposition")
        name = load["destinationTable"]["tableId"]
        resource, rows = self._table(name)
        fields = [[(one["name"], one["type"]) for one in of["schema"]["fields"]] for of in (load, resource)]
        _require(fields[0] == fields[1], "another schema than the table's")
        if load["sourceFormat"] == "CSV":
            _require((load.get("nullMarker"), load.get("skipLeadingRows")) == ("", None), "NULL or a header")
            more = read_csv(content, rows.schema, quoted_newlines=load.get("allowQuotedNewlines", False))
        else:
            more = pq.read_table(io.BytesIO(content), columns=rows.column_names).cast(rows.schema)
        self.tables[name] = resource, pa.concat_tables([rows, more])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: the next piece would wait until the first is acknowledged
    bigquery: BigQueryServer

    def _answered(self) -> None:
        url, headers = urlsplit(self.path), self.headers
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(headers.get("Content-Length", 0)))
        with self.bigquery.lock:
            self.bigquery.authorizations.add(headers["Authorization"])
            try:
                answer = self.bigquery.answer(self.command, url.path, query, headers["Content-Range"] or "", body)
                status = 204 if answer is None else 200
            except RefusedError as error:
                status, message = error.args
                answer = {"error": {"code": status, "message": message, "errors": [{"message": message}]}}
            sent = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        if answer is not None:
            self.send_header("Location", answer.get("location", ""))  # of an upload
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    do_GET = do_POST = do_PUT = do_DELETE = _answered  # noqa: N815  the names that http.server calls

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _require(right: bool, message: str, status: int = 400) -> None:
    if not right:
        raise RefusedError(status, message)


def read_csv(content: bytes, schema: pa.Schema, *, quoted_newlines: bool = True) -> pa.Table:
    """Read CSV as BigQuery does by default: no header, NULL where nothing is between commas, not even quotes."""
    if not (text := gzip.decompress(content)):
        return schema.empty_table()
    options = csv.ConvertOptions(
        column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parsing = csv.ParseOptions(newlines_in_values=quoted_newlines)
    return csv.read_csv(pa.py_buffer(text), csv.ReadOptions(column_names=schema.names), parsing, options)
