"""BigQuery as a warehouse: each file is uploaded as a load job, several at a time."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google.auth
import pyarrow as pa
import requests
from google.api_core.exceptions import GoogleAPICallError
from google.api_core.retry import Retry, if_exception_type
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery

from framehaul.data.schema import COMMENT, ColumnType
from framehaul.errors import UnavailableError
from framehaul.settings import Settings
from framehaul.studies.buildings import SCHEMA, TABLE
from framehaul.studies.warehouse.study import PARQUET, Target

TYPES = {ColumnType.INT32: "INTEGER", ColumnType.DATE: "DATE", ColumnType.TEXT: "STRING"}
FIELDS = [bigquery.SchemaField(column.name, TYPES[column.type]) for column in TABLE.columns]
APPEND: dict[str, Any] = {"create_disposition": "CREATE_NEVER", "write_disposition": "WRITE_APPEND", "schema": FIELDS}
# With this null marker a STRING is NULL only if the field is empty and not quoted:
# https://cloud.google.com/bigquery/docs/reference/rest/v2/Job#JobConfigurationLoad
CSV: dict[str, Any] = {"source_format": "CSV", "null_marker": "", "allow_quoted_newlines": True}
LIFETIME = dt.timedelta(days=1)
"""The time after which BigQuery deletes a table that a run could not delete."""
ANSWER_SECONDS, POLL_SECONDS = 30, 0.5
ONCE = Retry(predicate=if_exception_type())
"""No second attempt; by default the client retries for ten minutes."""
REMEDY = (
    "set FRAMEHAUL_BIGQUERY_PROJECT and FRAMEHAUL_BIGQUERY_DATASET to a data set that you may write to, and log in "
    "with `gcloud auth application-default login`"
)


@contextmanager
def opened(settings: Settings) -> Iterator[Target]:
    """Create a table with a unique name in the data set of the settings, and delete it at the end of the block.

    Raises UnavailableError, with the remedy, without settings or credentials, or when BigQuery refuses them.
    """
    project, endpoint = settings.bigquery_project, settings.bigquery_endpoint
    if not project or not settings.bigquery_dataset:
        raise UnavailableError(f"no data set of BigQuery is given: {REMEDY}")
    credentials: Credentials = AnonymousCredentials()
    if not (endpoint and endpoint.startswith("http://")):  # only emulators lack TLS; they get no credentials
        try:
            credentials, _ = google.auth.default(scopes=bigquery.Client.SCOPE)
        except GoogleAuthError as error:
            raise UnavailableError(f"there are no credentials for BigQuery: {REMEDY} ({error})") from error
    options = {"api_endpoint": endpoint} if endpoint else None
    # A client may be shared by threads: https://docs.cloud.google.com/python/docs/reference/bigquery/latest
    with contextlib.closing(bigquery.Client(project, credentials, client_options=options)) as client:
        dataset = bigquery.DatasetReference(project, settings.bigquery_dataset)
        table = bigquery.Table(bigquery.TableReference(dataset, f"{TABLE.name}_{secrets.token_hex(8)}"), FIELDS)
        table.description, table.expires = COMMENT, dt.datetime.now(dt.UTC) + LIFETIME
        try:
            client.get_dataset(dataset, retry=ONCE, timeout=ANSWER_SECONDS)
            # When an answer is lost, the client repeats the request, and the table exists already.
            client.create_table(table, exists_ok=True)
        except (GoogleAPICallError, GoogleAuthError, requests.RequestException) as error:
            where = f"data set {dataset.dataset_id} of the project {project}"
            raise UnavailableError(f"BigQuery creates no table in the {where}: {REMEDY} ({error})") from error

        def load_one(file: Path) -> None:
            """Load a file by one job, which loads all of its rows or none."""
            kind = {"source_format": "PARQUET"} if file.suffix == PARQUET else CSV
            with file.open("rb") as source:
                # A resumed upload keeps the number of its job, so that no row is loaded twice.
                job = client.load_table_from_file(source, table, job_config=bigquery.LoadJobConfig(**APPEND, **kind))
            while not job.done():  # result() would poll at growing intervals of up to 20 s
                time.sleep(POLL_SECONDS)
            job.result()

        def load(files: Sequence[Path], parallel: int) -> None:
            with ThreadPoolExecutor(parallel) as pool:
                list(pool.map(load_one, files))

        def content() -> pa.Table:  # over the JSON interface, which is slow for large tables
            return client.list_rows(table, FIELDS).to_arrow(create_bqstorage_client=False).cast(SCHEMA)

        try:
            yield Target(load, content)
        finally:
            client.delete_table(table, not_found_ok=True)
