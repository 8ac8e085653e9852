"""The anatomy of Parquet files: what each writer writes, what counts as wrong, and what a run leaves behind."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.bench.rounds import Failed, attempt
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.studies import buildings, parquet
from framehaul.studies.parquet import WRITERS, Writer

ROWS = 3000
CONTENT = buildings.table(ROWS, 1)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_every_file_of_a_writer_holds_the_table(writer: Writer, servers: Servers, tmp_path: Path) -> None:
    sizes = {}
    drift = {"fastparquet": "from_date:timestamp[ms];to_date:timestamp[ms]"}
    try:
        with writer.opened(servers.postgres, CONTENT) as client:
            for codec in writer.offers:
                values = parquet.measured((writer, codec), client, CONTENT, tmp_path / "a.parquet")
                assert values["types"] == drift.get(writer.name, "exact")
                sizes[codec] = values["file_bytes"]
    except UnavailableError as error:
        assert writer.name == "pg_parquet"
        pytest.skip(str(error))
    assert sizes["none"] == max(sizes.values()) > min(sizes.values())
    assert writer.name != "pyarrow" or sizes["zstd 9"] < sizes["zstd 1"]


# What counts as wrong


def broken(path: Path, content: pa.Table) -> None:
    path.write_bytes(b"PAR1")
    raise OSError("the disk is full")


NULL_AS_ZERO = CONTENT.set_column(0, "revision", CONTENT["revision"].fill_null(0))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path, _: pq.write_table(NULL_AS_ZERO, path), "content differs in revision"),
        (lambda path, content: pq.write_table(content, path, compression="gzip"), "with GZIP instead of SNAPPY"),
        (broken, "OSError: the disk is full"),
    ],
    ids=["NULL as zero", "ignores the codec", "broken"],
)
def test_a_wrong_file_is_failed(write: Callable[[Path, pa.Table], None], reason: str, tmp_path: Path) -> None:
    wrong = dataclasses.replace(WRITERS[0], write=lambda _, content, path, __: write(path, content)), "snappy"
    ended = attempt(lambda: parquet.measured(wrong, None, CONTENT, tmp_path / "a.parquet"), tmp_path)
    assert isinstance(ended, Failed)
    assert reason in ended.reason


# What a run leaves behind


@pytest.mark.usefixtures("servers", "own_out")
def test_a_run_tries_every_codec_and_keeps_the_chunks_of_default_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(_server: object) -> Any:
        raise UnavailableError("point FRAMEHAUL_POSTGRES_EXTENSIONS at a directory where it is built")

    monkeypatch.setattr(parquet, "open_psycopg_parquet_stream", unavailable)
    passes = parquet.run(rows=300, rounds=2, warmup=1, seed=7)
    every = [(writer.name, codec, number) for writer in WRITERS for codec in writer.offers for number in (1, 2)]
    assert sorted(passes.select("writer", "codec", "pass").rows()) == sorted(every)
    for row in passes.to_dicts():
        assert row["status"] == ("skipped" if row["writer"] == "pg_parquet" else "ok"), row
        assert (row["status"] == "ok") == (row["write_seconds"] is not None) == (row["reason"] is None), row
    assert len(parquet.chunks().filter(trial="pyarrow_snappy")) == len(buildings.SCHEMA)
