"""A loopback BigQuery: what google-cloud-bigquery asks of it to load small files. What else is asked gets a 501."""

from __future__ import annotations

import csv
import datetime as dt
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

PAGE_ROWS = 10
"""Rows in one answer of tabledata.list: few, so that a table takes several."""
PARSERS: dict[str, tuple[pa.DataType, Callable[[str], object]]] = {
    "INTEGER": (pa.int32(), int),
    "DATE": (pa.date32(), dt.date.fromisoformat),
    "STRING": (pa.string(), str),
}

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

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> Json | None:
        """The answer to a request, or None for one without content; raises RefusedError."""
        base = f"/bigquery/v2/projects/{re.escape(self.project)}"
        tables = rf"{base}/datasets/{re.escape(self.dataset)}/tables"
        known: list[tuple[str, str, Callable[..., Json | None]]] = [
            ("GET", rf"{base}/datasets/([^/]+)", self._dataset),
            ("POST", tables, lambda: self._create(json.loads(body))),
            ("GET", rf"{tables}/([^/]+)", lambda name: self._table(name)[0]),
            ("DELETE", rf"{tables}/([^/]+)", self._delete),
            ("GET", rf"{tables}/([^/]+)/data", lambda name: self._data(name, query)),
            ("POST", rf"/upload{base}/jobs", lambda: self._begin(json.loads(body))),
            ("PUT", rf"/upload{base}/jobs", lambda: self._receive(query, headers, body)),
            ("GET", rf"{base}/jobs/([^/]+)", lambda name: self.jobs[name]),
        ]
        for verb, pattern, function in known:
            if verb == method and (matched := re.fullmatch(pattern, path)):
                return function(*matched.groups())
        self.unexpected.append(f"{method} {path}")
        raise RefusedError(501, f"{method} {path} is not spoken here")

    def _dataset(self, name: str) -> Json:
        _require(name == self.dataset, f"Not found: Dataset {self.project}:{name}", 404)
        return {"datasetReference": {"projectId": self.project, "datasetId": name}}

    def _create(self, resource: Json) -> Json:
        types = {one["name"]: PARSERS[one["type"]][0] for one in resource["schema"]["fields"]}
        self.tables[resource["tableReference"]["tableId"]] = resource, pa.schema(types.items()).empty_table()
        self.made.append(resource)
        return resource

    def _table(self, name: str) -> tuple[Json, pa.Table]:
        _require(name in self.tables, f"Not found: Table {name}", 404)
        return self.tables[name]

    def _delete(self, name: str) -> None:
        self._table(name)
        del self.tables[name]

    def _data(self, name: str, query: dict[str, str]) -> Json:
        rows, start = self._table(name)[1], int(query.get("pageToken", 0))
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

    def _receive(self, query: dict[str, str], headers: Any, body: bytes) -> Json:
        job, size = self.jobs[query["upload_id"]], len(body)
        _require(headers["Content-Range"] == f"bytes 0-{size - 1}/{size}", f"not whole: {headers['Content-Range']}")
        _require("status" not in job, "these bytes are there")
        job["status"] = {"state": "DONE"} | self._finished(job["configuration"]["load"], body)
        return job | {"status": {"state": "RUNNING"}}

    def _finished(self, load: Json, content: bytes) -> Json:
        try:
            _require(self.job_error is None, self.job_error or "")
            _require(load["createDisposition"] == "CREATE_NEVER", "createDisposition")
            _require(load["writeDisposition"] == "WRITE_APPEND", "writeDisposition")
            name = load["destinationTable"]["tableId"]
            resource, rows = self._table(name)
            _require(_names(load["schema"]) == _names(resource["schema"]), "another schema than the table's")
            read = {"CSV": _csv_rows, "PARQUET": _parquet_rows}[load["sourceFormat"]]
            self.tables[name] = resource, pa.concat_tables([rows, read(content, load, rows.schema)])
        except Exception as error:  # noqa: BLE001  whatever is wrong with a file is the job's error
            found = {"reason": "invalid", "message": f"{error}"}
            return {"errorResult": found, "errors": [found]}
        return {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: the next piece would wait until the first is acknowledged
    bigquery: BigQueryServer

    def _answered(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.bigquery.lock:
            self.bigquery.authorizations.add(self.headers["Authorization"])
            try:
                answer = self.bigquery.answer(self.command, url.path, query, self.headers, body)
                status = 204 if answer is None else 200
            except RefusedError as error:
                status, message = error.args
                answer = {"error": {"code": status, "message": message, "errors": [{"message": message}]}}
            sent = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        if answer is not None:
            if "location" in answer:  # of an upload
                self.send_header("Location", answer["location"])
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


def _names(schema: Json) -> list[tuple[str, str]]:
    return [(one["name"], one["type"]) for one in schema["fields"]]


def _csv_rows(content: bytes, load: Json, schema: pa.Schema) -> pa.Table:
    """As BigQuery reads CSV by default: no header, NULL where nothing is between two commas, not even quotes."""
    _require(load.get("nullMarker", "") == "", "a null marker")
    _require(int(load.get("skipLeadingRows", 0)) == 0, "rows are skipped")
    kinds = [PARSERS[kind][1] for _, kind in _names(load["schema"])]
    text = io.StringIO(gzip.decompress(content).decode(), newline="")
    rows: list[list[object]] = []
    for row in csv.reader(text, quoting=csv.QUOTE_NOTNULL, strict=True):
        _require(len(row) == len(kinds), f"row {len(rows) + 1} has {len(row)} columns instead of {len(kinds)}")
        quoted_newline = any(value and "\n" in value for value in row)
        _require(bool(load.get("allowQuotedNewlines")) or not quoted_newline, "a newline in quotes")
        rows.append([None if value is None else kind(value) for kind, value in zip(kinds, row, strict=True)])
    columns = zip(*rows, strict=True) if rows else [[] for _ in kinds]
    return pa.Table.from_arrays([pa.array(v, one.type) for v, one in zip(columns, schema, strict=True)], schema=schema)


def _parquet_rows(content: bytes, load: Json, schema: pa.Schema) -> pa.Table:
    return pq.read_table(io.BytesIO(content), columns=schema.names).cast(schema)
