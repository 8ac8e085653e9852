"""What is compared: networks, techniques, codecs, encryption, and PgBouncer; and the rows of its results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench import measured, store
from framehaul.data.frames import BATCH_ROWS, encode_stream, to_pandas, to_polars
from framehaul.data.schema import Table
from framehaul.servers.network import Link
from framehaul.studies.registry import NETWORK
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond.clickhouse_read import ARROW_DICTIONARY, read_arrow
from framehaul.techniques.beyond.clickhouse_write import ARROW, to_arrow
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.registry import DATABASES, Database, Direction, named

LOOPBACK, NEAR = Link(measured.LOOPBACK), Link("1 Gbit/s, 1 ms", 1, 1000)
LINKS = LOOPBACK, NEAR, Link("1 Gbit/s, 10 ms", 10, 1000), Link("100 Mbit/s, 30 ms", 30, 100)
"""From one process to the other, within a zone, a region, and from an office."""
type Encryption = Literal["none", "tls"]
type Via = Literal["direct", "pgbouncer"]

COMPARED: dict[tuple[Database, Direction], tuple[str, ...]] = {
    ("postgres", "write"): (
        "polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_pgpq_presorted_two_connections",
    ),
    ("postgres", "read"): (
        "polars_psycopg_copy_text", "polars_asyncpg_copy_decoded", "polars_asyncpg_copy_decoded_two_connections",
    ),
    ("clickhouse", "write"): (
        "polars_urllib_parquet", "polars_http_client_arrow_stream", "polars_http_client_native_presorted",
    ),
    ("clickhouse", "read"): (
        "polars_urllib_csv", "polars_http_client_arrow_dictionary", "polars_http_client_native_decoded",
    ),
}  # fmt: skip
"""Of each direction the best published technique and two of the best others: for PostgreSQL over one connection and
over two, for ClickHouse as Arrow, which a codec can compress, and as Native. All writes append."""
ENCRYPTED = (
    "polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_psycopg_copy_text", "polars_asyncpg_copy_decoded",
    "polars_http_client_arrow_stream", "polars_http_client_native_decoded",
)  # fmt: skip
"""Measured with TLS as well, on `NEAR`. Their clients verify the certificate by its authority and its host name."""
CODEC = "zstd"
"""What the buffers of an Arrow stream are compressed with."""
WITH_CODEC = {"write": "polars_http_client_arrow_stream", "read": "polars_http_client_arrow_dictionary"}
"""The technique of each direction of ClickHouse that is measured with the codec as well."""


@dataclass(frozen=True)
class Task:
    """What a pass does."""

    database: Database
    direction: Direction
    technique: str
    codec: str
    network: str
    encryption: Encryption = "none"
    via: Via = "direct"

    @property
    def of(self) -> Technique:
        """The technique, with its codec."""
        known = named(self.database, self.direction, self.technique)
        return known if self.codec == "none" else with_codec(known)

    @property
    def words(self) -> str:
        """The task in words."""
        parts = [f"{DATABASES[self.database]} {self.direction}", self.technique]
        parts += [self.codec] if self.codec != "none" else []
        parts += [self.network] + (["TLS"] if self.encryption == "tls" else [])
        return ", ".join(parts + (["PgBouncer"] if self.via == "pgbouncer" else []))


def with_codec(one: Technique) -> Technique:
    """A technique of Arrow streams, of ClickHouse, whose buffers are compressed."""

    def write(connection: HttpConnection, table: Table, frame: pl.DataFrame | pd.DataFrame) -> None:
        query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT ArrowStream"
        content, options = to_arrow(frame, table), pa.ipc.IpcWriteOptions(compression=CODEC)
        batches = content.to_batches(max_chunksize=BATCH_ROWS)
        connection.post(query, body=encode_stream(content.schema, batches, options), settings=ARROW).read()

    def read(connection: HttpConnection, table: Table) -> pl.DataFrame | pd.DataFrame:
        query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
        compressed = ARROW_DICTIONARY | {"output_format_arrow_compression_method": CODEC}
        content = read_arrow(connection.post(query, settings=compressed))
        return to_polars(content, table) if one.frame == "polars" else to_pandas(content, table)

    function = write if one.direction == "write" else read
    function.__name__ = one.name
    return replace(one, function=function, label=f"{one.label}, {CODEC}")


def tasks() -> list[Task]:
    """Everything that is measured in rounds."""
    planned = []
    for (database, direction), names in COMPARED.items():
        for name in names:
            planned += [Task(database, direction, name, "none", link.name) for link in LINKS]
            if database == "clickhouse" and name == WITH_CODEC[direction]:
                planned += [Task(database, direction, name, CODEC, link.name) for link in LINKS]
            if name in ENCRYPTED:
                planned.append(Task(database, direction, name, "none", NEAR.name, "tls"))
    return planned


def pooled() -> list[Task]:
    """What is tried through PgBouncer: the first technique of Polars of each direction, driver, family, connections.

    A technique that wants an empty table cannot be called again over its connection, and one of pg_parquet leaves a
    file: what they do says nothing of the pooler.
    """
    chosen: dict[tuple[str, ...], Technique] = {}
    for one in techniques("postgres"):
        usual = one.origin in ("published", "beyond") and not {"pg_parquet", "empty_table"} & {*one.requires}
        if usual and one.frame == "polars":
            chosen.setdefault((one.direction, one.driver, one.family, str(one.connections)), one)
    return [
        Task("postgres", one.direction, one.name, "none", LOOPBACK.name, via="pgbouncer") for one in chosen.values()
    ]


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """One pass of a technique over one network; a missing number is None, never 0."""

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """The whole task in words."""


def placed(directory: Path) -> pl.DataFrame:
    """The passes of a results directory, with the road and the codec of each as `bench.measured.PLACE` has them."""
    tls = pl.when(encryption="tls").then(pl.lit(", TLS")).otherwise(pl.lit(""))
    pooled = pl.when(via="pgbouncer").then(pl.lit(", PgBouncer")).otherwise(pl.lit(""))
    return store.read(directory / NETWORK.results, Result).with_columns(
        road=pl.concat_str("network", tls, pooled), variant=pl.col("codec").replace("none", ""),
        label=pl.col("label").str.strip_suffix(pl.concat_str(pl.lit(", "), "codec")),
    )  # fmt: skip
