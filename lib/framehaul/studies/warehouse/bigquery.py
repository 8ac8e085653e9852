"""BigQuery as a warehouse: each file is uploaded and becomes a load job, several of them at a time."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import google.auth
import pyarrow as pa
import requests
from google.api_core.exceptions import GoogleAPICallError
from google.api_core.retry import Retry, if_exception_type
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.resumable_media import InvalidResponse

from framehaul.data.schema import COMMENT
from framehaul.errors import UnavailableError
from framehaul.settings import Settings
from framehaul.studies.warehouse.buildings import SCHEMA
from framehaul.studies.warehouse.warehouses import PARQUET, TABLE, WarehouseError, each_at_once

TYPES = {pa.int32(): "INTEGER", pa.date32(): "DATE", pa.string(): "STRING"}
FIELDS = [bigquery.SchemaField(field.name, TYPES[field.type]) for field in SCHEMA]
KEPT_FOR = dt.timedelta(days=1)
"""How long BigQuery keeps a table that a run could not delete."""
ANSWER_SECONDS = 30
"""How long the first answer may take."""
POLL_SECONDS = 0.5
"""How long a job is left alone before it is asked about again."""
ONCE = Retry(predicate=if_exception_type())
"""No second attempt, where the client would go on for ten minutes."""
REMEDY = (
    "set FRAMEHAUL_BIGQUERY_PROJECT and FRAMEHAUL_BIGQUERY_DATASET to a data set that you may write to, and log in "
    "with `gcloud auth application-default login`"
)


@dataclass(frozen=True)
class BigQuery:
    """A table of BigQuery, or of an emulator; every file is a job of its own: all of its rows or none."""

    client: bigquery.Client
    table: bigquery.TableReference

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """As `Target.load`; when a job fails, rows of other files may be in the table."""
        each_at_once(self._load, files, parallel)

    def _load(self, file: Path) -> None:
        try:
            with file.open("rb") as source:
                # The upload goes on where it was when the server could not answer, and its job has one number however
                # often it is sent: no row is there twice. Up to 100 MB of the file are in memory at once.
                job = self.client.load_table_from_file(source, self.table, job_config=_job_config(file))
            while not job.done():  # result() would ask less and less often, in the end every 20 s
                time.sleep(POLL_SECONDS)
            job.result()
        except (GoogleAPICallError, GoogleAuthError, InvalidResponse, requests.RequestException) as error:
            raise WarehouseError(f"{file}: {error}") from error

    def content(self) -> pa.Table:
        """As `Target.content`, over the JSON interface: slow for large tables."""
        rows = self.client.list_rows(self.table, selected_fields=FIELDS)
        return rows.to_arrow(create_bqstorage_client=False).cast(SCHEMA)


@contextmanager
def opened(settings: Settings) -> Iterator[BigQuery]:
    """A table in the data set of the settings, under a name that nobody else has; it is deleted at the end.

    Raises UnavailableError, with the remedy, without settings or credentials, or when BigQuery refuses them.
    """
    # One client for all threads, as it may be: https://docs.cloud.google.com/python/docs/reference/bigquery/latest
    with contextlib.closing(_client(settings)) as client:
        table = _new_table(client, settings)
        try:
            yield BigQuery(client, table)
        finally:
            client.delete_table(table, not_found_ok=True)


def _client(settings: Settings) -> bigquery.Client:
    """A client for the project; without TLS one that sends no credentials, as an emulator wants none."""
    if not settings.bigquery_project or not settings.bigquery_dataset:
        raise UnavailableError(f"no data set of BigQuery is given: {REMEDY}")
    endpoint = settings.bigquery_endpoint
    options = {"api_endpoint": endpoint} if endpoint else None
    if endpoint and endpoint.startswith("http://"):
        return bigquery.Client(settings.bigquery_project, AnonymousCredentials(), client_options=options)
    try:
        credentials, _ = google.auth.default(scopes=bigquery.Client.SCOPE)
    except GoogleAuthError as error:
        raise UnavailableError(f"there are no credentials for BigQuery: {REMEDY} ({error})") from error
    return bigquery.Client(settings.bigquery_project, credentials, client_options=options)


def _new_table(client: bigquery.Client, settings: Settings) -> bigquery.TableReference:
    """An empty table, once BigQuery has said that the data set is there; raises UnavailableError."""
    dataset = bigquery.DatasetReference(client.project, settings.bigquery_dataset or "")
    reference = bigquery.TableReference(dataset, f"{TABLE}_{secrets.token_hex(8)}")
    table = bigquery.Table(reference, FIELDS)
    table.description, table.expires = COMMENT, dt.datetime.now(dt.UTC) + KEPT_FOR
    try:
        client.get_dataset(dataset, retry=ONCE, timeout=ANSWER_SECONDS)
        # The client asks again when an answer is lost; then the table is there, and ours.
        client.create_table(table, exists_ok=True)
    except (GoogleAPICallError, GoogleAuthError, requests.RequestException) as error:
        where = settings.bigquery_endpoint or "BigQuery"
        raise UnavailableError(
            f"{where} gives no table in the data set {dataset.dataset_id} of the project {dataset.project}: {REMEDY} "
            f"({error})"
        ) from error
    return reference


def _job_config(file: Path) -> bigquery.LoadJobConfig:
    """How a file becomes rows: of columns that are known, added to the table that is there."""
    config = bigquery.LoadJobConfig(
        schema=FIELDS,
        create_disposition=bigquery.CreateDisposition.CREATE_NEVER,
        write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
    )
    if file.suffix == PARQUET:
        config.source_format = bigquery.SourceFormat.PARQUET
    else:
        config.source_format = bigquery.SourceFormat.CSV
        config.encoding = bigquery.Encoding.UTF_8
        # A STRING is NULL where the field is empty and not quoted, with the default marker alone:
        # https://cloud.google.com/bigquery/docs/reference/rest/v2/Job#JobConfigurationLoad
        config.null_marker = ""
        config.allow_quoted_newlines = True
    return config
