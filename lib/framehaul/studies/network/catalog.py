"""The tasks that the network study compares, and the rows of its results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa

from framehaul.bench import measured, store
from framehaul.data.frames import BATCH_ROWS, encode_stream, to_polars
from framehaul.data.schema import Table
from framehaul.servers.network import Link
from framehaul.studies.registry import NETWORK
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond.clickhouse_read import ARROW_DICTIONARY, read_arrow
from framehaul.techniques.beyond.clickhouse_write import INSERT
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.prepare import prepare
from framehaul.techniques.registry import DATABASES, Database, Direction, named

LOOPBACK, NEAR = Link(measured.LOOPBACK), Link("1 Gbit/s, 1 ms", 1, 1000)
LINKS = LOOPBACK, NEAR, Link("1 Gbit/s, 10 ms", 10, 1000), Link("100 Mbit/s, 30 ms", 30, 100)
"""The networks within a machine, an availability zone and a region, and from an office; times are round trips."""

COMPARED: dict[tuple[Database, Direction], tuple[str, ...]] = {
    ("postgres", "write"): (
        "polars_asyncpg_copy_binary",
        "polars_pgpq_presorted",
        "polars_pgpq_presorted_two_connections",
    ),
    ("postgres", "read"): (
        "polars_psycopg_copy_text",
        "polars_asyncpg_copy_decoded",
        "polars_psycopg_copy_decoded_two_connections",
    ),
    ("clickhouse", "write"): (
        "polars_urllib_parquet",
        "polars_http_client_arrow_stream",
        "polars_http_client_native_presorted",
    ),
    ("clickhouse", "read"): (
        "polars_urllib_csv",
        "polars_http_client_arrow_dictionary",
        "polars_http_client_native_decoded",
    ),
}
"""For each direction, the best published technique and two fast ones; all writes append.

The fast ones of PostgreSQL use one and two connections. Those of ClickHouse use Arrow, which a codec can compress, and
Native.
"""
ENCRYPTED = (
    "polars_asyncpg_copy_binary",
    "polars_pgpq_presorted",
    "polars_psycopg_copy_text",
    "polars_asyncpg_copy_decoded",
    "polars_http_client_arrow_stream",
    "polars_http_client_native_decoded",
)
"""Techniques that are measured on `NEAR` with TLS as well; clients verify the certificate's authority and host name."""
CODEC = "zstd"
WITH_CODEC = {"write": "polars_http_client_arrow_stream", "read": "polars_http_client_arrow_dictionary"}
"""The ClickHouse technique of each direction that is measured with `CODEC` as well."""


@dataclass(frozen=True)
class Task:
    """A technique on a network, with or without a codec, TLS and PgBouncer."""

    database: Database
    direction: Direction
    technique: str
    codec: str
    network: str
    encryption: Literal["none", "tls"] = "none"
    via: Literal["direct", "pgbouncer"] = "direct"

    @property
    def measured(self) -> Technique:
        """The technique, with its codec."""
        plain = named(self.database, self.direction, self.technique)
        return plain if self.codec == "none" else with_codec(plain)

    @property
    def text(self) -> str:
        """The task in words, which identifies its rows."""
        parts = [f"{DATABASES[self.database]} {self.direction}", self.technique]
        parts += [self.codec] if self.codec != "none" else []
        parts += [self.network] + (["TLS"] if self.encryption == "tls" else [])
        return ", ".join(parts + (["PgBouncer"] if self.via == "pgbouncer" else []))


def with_codec(technique: Technique) -> Technique:
    """Return a technique that moves Arrow streams between Polars and ClickHouse, with compressed buffers."""

    def write(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
        query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT ArrowStream"
        content, options = prepare(frame, table, "clickhouse"), pa.ipc.IpcWriteOptions(compression=CODEC)
        batches = content.to_batches(max_chunksize=BATCH_ROWS)
        connection.post(query, body=encode_stream(content.schema, batches, options), settings=INSERT).read()

    def read(connection: HttpConnection, table: Table) -> pl.DataFrame:
        query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
        compressed = ARROW_DICTIONARY | {"output_format_arrow_compression_method": CODEC}
        return to_polars(read_arrow(connection.post(query, settings=compressed)), table)

    function = write if technique.direction == "write" else read
    function.__name__ = technique.name
    return replace(technique, function=function, label=f"{technique.label}, {CODEC}")


def tasks() -> list[Task]:
    """Return the tasks that are measured in rounds."""
    planned = []
    for (database, direction), names in COMPARED.items():
        for name in names:
            codecs = ["none", CODEC] if database == "clickhouse" and name == WITH_CODEC[direction] else ["none"]
            planned += [Task(database, direction, name, codec, link.name) for codec in codecs for link in LINKS]
            if name in ENCRYPTED:
                planned.append(Task(database, direction, name, "none", NEAR.name, "tls"))
    return planned


def pooled() -> list[Task]:
    """Return the tasks through PgBouncer: the first Polars technique of each direction, driver, family, connections.

    Techniques that need an empty table cannot be called twice over a connection. They are left out, as are techniques
    that use pg_parquet.
    """
    chosen: dict[tuple[str, ...], Task] = {}
    for one in techniques("postgres"):
        usual = one.origin in ("published", "beyond") and not {"pg_parquet", "empty_table"} & {*one.requires}
        if usual and one.frame == "polars":
            task = Task("postgres", one.direction, one.name, "none", LOOPBACK.name, via="pgbouncer")
            chosen.setdefault((one.direction, one.driver, one.family, str(one.connections)), task)
    return [*chosen.values()]


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """A pass of a technique over a network; a missing number is None, never 0."""

    codec: str
    network: str
    encryption: str
    via: str
    task: str
    """`Task.text`"""


def placed(directory: Path) -> pl.DataFrame:
    """Return the passes of a results directory with the columns of `bench.measured.PLACE`: network and codec."""
    tls = pl.when(encryption="tls").then(pl.lit(", TLS")).otherwise(pl.lit(""))
    pooler = pl.when(via="pgbouncer").then(pl.lit(", PgBouncer")).otherwise(pl.lit(""))
    return store.read(directory / NETWORK.results, Result).with_columns(
        road=pl.concat_str("network", tls, pooler),
        variant=pl.col("codec").replace("none", ""),
        label=pl.col("label").str.strip_suffix(pl.concat_str(pl.lit(", "), "codec")),
    )
