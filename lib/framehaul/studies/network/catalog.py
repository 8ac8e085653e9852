"""What is compared: networks, techniques, codecs, encryption, and PgBouncer before PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.data.frames import BATCH_ROWS, encode_stream, to_pandas, to_polars
from framehaul.data.schema import Table
from framehaul.results import measured
from framehaul.servers.network import Link
from framehaul.studies.network.queries import QUERIES
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.beyond.clickhouse_read import ARROW_DICTIONARY, read_arrow
from framehaul.techniques.beyond.clickhouse_write import ARROW, to_arrow
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.registry import DATABASES, Database, Direction, named

LINKS = (
    Link(measured.LOOPBACK, loopback=True),
    Link("no delay, no limit"),
    Link("10 Gbit/s, 0.3 ms", 0.3, 10_000),
    Link("1 Gbit/s, 1 ms", 1, 1000),
    Link("1 Gbit/s, 10 ms", 10, 1000),
    Link("100 Mbit/s, 30 ms", 30, 100),
)
"""From one process to the other, within a rack, a zone, a region, and from an office."""
LOOPBACK, UNLIMITED = LINKS[:2]
FEW = (LOOPBACK, LINKS[3], LINKS[5])
AS_IT_IS = Link("as it is")
"""The road to servers that others run, which is measured and not changed."""


def road_to(database: Database, network: str = AS_IT_IS.name) -> str:
    """Under which name a network was measured: each server that others run has a road of its own."""
    return f"{network}, {DATABASES[database]}" if network == AS_IT_IS.name else network


type Encryption = Literal["none", "tls"]
HELPS, HELPS_NOT = ", with which it works", " does not help: "
"""Said of what drivers advise before PgBouncer, where it does and where it does not."""
type Via = Literal["direct", "pgbouncer"]

COMPARED: dict[tuple[Database, Direction], tuple[str, ...]] = {
    ("postgres", "write"): (
        "polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_pgpq_presorted_two_connections",
    ),
    ("postgres", "read"): (
        "polars_psycopg_copy_text", "polars_asyncpg_copy_decoded", "polars_asyncpg_copy_decoded_two_connections",
    ),
    ("clickhouse", "write"): (
        "polars_urllib_parquet", "polars_http_client_arrow_stream", "polars_http_client_arrow_two_connections",
        "polars_http_client_native_presorted",
    ),
    ("clickhouse", "read"): (
        "polars_urllib_csv", "polars_http_client_arrow_dictionary", "polars_http_client_arrow_two_connections",
        "polars_http_client_native_decoded",
    ),
}  # fmt: skip
"""Of each direction the best published technique, the best over one connection, and the best over two, for ClickHouse
as Arrow, which a codec can compress, and as Native; for writes, of those that append."""
FURTHER: dict[tuple[Database, Direction], tuple[str, ...]] = {
    ("postgres", "write"): (
        "polars_psycopg_copy_text", "polars_adbc_ingest", "pandas_psycopg_copy_text",
        "pandas_pgpq_presorted", "pandas_adbc_ingest",
    ),
    ("postgres", "read"): (
        "polars_asyncpg_prepared_fetch", "polars_psycopg_row_fetch", "polars_adbc_fetch", "polars_connectorx_read",
        "polars_duckdb_scan", "polars_psycopg_copy_decoded", "polars_psycopg_copy_decoded_two_connections",
        "pandas_psycopg_copy_text", "pandas_asyncpg_copy_decoded", "pandas_psycopg_copy_decoded_two_connections",
    ),
    ("clickhouse", "write"): (
        "polars_clickhouse_driver_native_columnar", "pandas_urllib_parquet", "pandas_http_client_arrow_stream",
        "pandas_http_client_arrow_two_connections", "pandas_http_client_native_presorted",
        "polars_http_client_parquet_uncompressed", "polars_http_client_parquet_lz4", "polars_http_client_parquet_zstd",
    ),
    ("clickhouse", "read"): (
        "polars_urllib_parquet", "polars_clickhouse_driver_native_columnar", "pandas_urllib_csv",
        "pandas_http_client_native_decoded", "pandas_http_client_arrow_preallocated",
        "pandas_clickhouse_driver_native_columnar",
    ),
}  # fmt: skip
"""At the effort `all`: other families, and pandas. All of the writes append: bulk loads do not compare with them."""
ENCRYPTED = (
    "polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_psycopg_copy_text", "polars_asyncpg_copy_decoded",
    "polars_http_client_arrow_stream", "polars_http_client_native_decoded",
)  # fmt: skip
"""Measured with TLS as well at the effort `few`."""

UNVERIFIED = {
    "connectorx": "ConnectorX verifies no host name: of sslmode it knows disable, prefer and require alone",
}
"""Drivers whose encrypted connections may be to anybody, by what is said of them."""

CODECS = {"lz4": "lz4_frame", "zstd": "zstd"}
"""What the buffers of an Arrow stream can be compressed with, as ClickHouse calls it."""
WITH_CODECS = {"write": "polars_http_client_arrow_stream", "read": "polars_http_client_arrow_dictionary"}
"""Of which technique of ClickHouse's directions codecs are compared."""
OWN_CODECS = {
    "polars_urllib_parquet": "zstd", "pandas_urllib_parquet": "snappy",
    "polars_http_client_parquet_lz4": "lz4", "polars_http_client_parquet_zstd": "zstd",
}  # fmt: skip
"""Of the Parquet files that are sent, of published techniques by default; of those that ClickHouse sends it is zstd."""


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
        if self.technique in QUERIES:
            return QUERIES[self.technique]
        known = named(self.database, self.direction, self.technique)
        return with_codec(known, self.codec) if self._with_codec else known

    @property
    def _with_codec(self) -> bool:
        return self.database == "clickhouse" and self.technique == WITH_CODECS[self.direction] and self.codec in CODECS

    @property
    def words(self) -> str:
        """All of it, for people."""
        parts = [f"{DATABASES[self.database]} {self.direction}", self.technique]
        parts += [self.codec] if self._with_codec else []
        parts += [self.network] + (["TLS"] if self.encryption == "tls" else [])
        return ", ".join(parts + (["PgBouncer"] if self.via == "pgbouncer" else []))


def with_codec(one: Technique, codec: str) -> Technique:
    """A technique of Arrow streams, of ClickHouse, whose buffers are compressed."""

    def write(connection: HttpConnection, table: Table, frame: pl.DataFrame | pd.DataFrame) -> None:
        query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT ArrowStream"
        content, options = to_arrow(frame, table), pa.ipc.IpcWriteOptions(compression=codec)
        batches = content.to_batches(max_chunksize=BATCH_ROWS)
        connection.post(query, body=encode_stream(content.schema, batches, options), settings=ARROW).read()

    def read(connection: HttpConnection, table: Table) -> pl.DataFrame | pd.DataFrame:
        query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
        compressed = ARROW_DICTIONARY | {"output_format_arrow_compression_method": CODECS[codec]}
        content = read_arrow(connection.post(query, settings=compressed))
        return to_polars(content, table) if one.frame == "polars" else to_pandas(content, table)

    function = write if one.direction == "write" else read
    function.__name__ = one.name
    return replace(one, function=function, label=f"{one.label}, {codec}")


def codecs(database: Database, direction: Direction, name: str) -> tuple[str, ...]:
    """What the path of a technique can be compressed with, and is compared."""
    if database == "clickhouse" and name == WITH_CODECS[direction]:
        return "none", *CODECS
    if database == "clickhouse" and name in OWN_CODECS:
        return ("zstd" if direction == "read" else OWN_CODECS[name],)
    return ("none",)


def tasks(roads: str, links: tuple[Link, ...]) -> list[Task]:
    """Everything that is measured over these networks; raises ValueError for an effort that is not known."""
    if roads not in ROADS:
        raise ValueError(f"ROADS={roads!r}: choose from {', '.join(ROADS)}")
    planned = []
    for (database, direction), names in COMPARED.items():
        every = {"least": names[1:2], "all": (*names, *FURTHER[database, direction])}.get(roads, names)
        for name in every:
            for link in links:
                for codec in codecs(database, direction, name):
                    planned.append(Task(database, direction, name, codec, link.name))
                    if _encrypted(roads, link, name, codec):
                        planned.append(Task(database, direction, name, codec, link.name, "tls"))
    planned += [Task("postgres", "read", name, "none", link.name) for name in QUERIES for link in links]
    return planned + pooled(roads, links[0])


ROADS = ("least", "few", "networks", "all")


def _encrypted(roads: str, link: Link, name: str, codec: str) -> bool:
    if link == AS_IT_IS:
        return False
    return roads == "all" or (name in ENCRYPTED and link in FEW[:2] and codec == "none")


def pooled(roads: str, link: Link) -> list[Task]:
    """What is tried through PgBouncer, over this network: at the effort `all` every technique that needs no file.

    Else the first technique of Polars of each direction, driver, family and number of connections, for two that read
    share a snapshot, and of upserts, which make tables that are temporary; of the least effort, of reads with COPY
    over one.
    """
    chosen: dict[tuple[str, ...], Technique] = {}
    for one in (*techniques("postgres"), *upserts("postgres")):
        # Everyday ones take long for many rows, and prepare and set no other way than these. Who wants an empty table
        # cannot be called again over its connection: what it does then says nothing of the pooler.
        if one.origin in ("published", "beyond", "upsert") and not {"pg_parquet", "empty_table"} & {*one.requires}:
            kind: tuple[str, ...] = (one.name,)
            if roads != "all":
                kind = (one.direction, one.driver, one.family, str(one.connections), str(one.origin == "upsert"))
            if roads == "all" or one.frame == "polars":
                chosen.setdefault(kind, one)
    few = [*chosen.values()]
    if roads == "least":
        few = [one for one in few if (one.direction, one.family, one.connections) == ("read", "copy_binary", 1)]
    return [Task(one.database, one.direction, one.name, "none", link.name, via="pgbouncer") for one in few]


def chosen_links(roads: str, mode: str) -> tuple[Link, ...]:
    """The networks of an effort; to servers that others run there is one."""
    if mode != "embedded":
        return (AS_IT_IS,)
    return {"least": FEW[:2], "few": FEW}.get(roads, LINKS)


def patience_seconds(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell may take: what the slowest network takes for so many rows, and what is tried."""
    planned = len(tasks(values.get("roads", "few"), LINKS))
    passes: int = values.get("passes", 1) + values.get("warmup", 0)
    return planned * passes * (2 + int(values.get("rows", 0)) // 20_000)
