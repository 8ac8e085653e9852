"""The anatomy of Parquet files: what each writer writes, what counts as wrong, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.bench import store
from framehaul.bench.passes import Failed, Ok, Pass, Skipped, attempt
from framehaul.bench.rounds import Rounds, in_rounds
from framehaul.errors import ResultsError, UnavailableError
from framehaul.servers import Servers
from framehaul.settings import Settings
from framehaul.studies.parquet import STUDY, files, writers
from framehaul.studies.parquet import study as parquet
from framehaul.studies.parquet.files import Bench, RoundTrip, Task, difference, tasks_of
from framehaul.studies.parquet.study import Anatomy
from framehaul.studies.parquet.writers import GZIP, PYARROW, SNAPPY, WRITERS, ZSTD_3, Codec, Options, Writer
from framehaul.studies.warehouse import buildings

ROWS = 3000
CONTENT = buildings.table(ROWS, 1)
NAMED = {writer.name: writer for writer in WRITERS}


def bench_of(
    servers: Servers, directory: Path, *chosen: Writer, content: pa.Table = CONTENT
) -> AbstractContextManager[Bench]:
    return files.opened(chosen, content, servers.postgres, directory)


def measured(bench: Bench, task: Task) -> tuple[dict[str, Any], pl.DataFrame]:
    """What came of a file that was written well; the test of pg_parquet is skipped where the server has none."""
    ended = attempt(lambda: bench.measured(task))
    if isinstance(ended, Skipped):
        assert task.writer.name == "pg_parquet"
        pytest.skip(ended.reason)
    assert isinstance(ended, Ok), (task.name, ended)
    return ended.values


def chunks(ratios: list[float]) -> pl.DataFrame:
    """Chunks of a file that nobody wrote."""
    return pl.DataFrame(
        {
            "label": "pyarrow",
            "part": "published",
            "rows": 10,
            "column": "geom",
            "compressed_bytes": [round(1000 * ratio) for ratio in ratios],
            "uncompressed_bytes": [1000] * len(ratios),
        }
    )


# Each writer


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_every_file_of_a_writer_holds_the_table(writer: Writer, servers: Servers, tmp_path: Path) -> None:
    assert all(column.null_count for column in CONTENT.columns)
    tasks = tasks_of((writer,))
    assert {task.codec for task in tasks} == set(writer.offers)
    with bench_of(servers, tmp_path, writer) as bench:
        for task in tasks:
            values, in_file = measured(bench, task)
            assert in_file.filter(column="geom")["rows"].sum() == ROWS
            drift = {"polars": "geom:large_string;h3_7:large_string;h3_8:large_string;h3_9:large_string",
                     "fastparquet": "from_date:timestamp[ms];to_date:timestamp[ms]"}  # fmt: skip
            assert values["types"] == drift.get(writer.name, "exact")


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_row_groups_are_of_the_size_that_was_asked_for(writer: Writer, servers: Servers, tmp_path: Path) -> None:
    content = buildings.table(20_000, 1)
    task = Task("groups", "published", writer, SNAPPY, Options(SNAPPY, row_group_rows=8192))
    with bench_of(servers, tmp_path, writer, content=content) as bench:
        values, in_file = measured(bench, task)
    groups = in_file.filter(column="geom")["rows"]
    assert groups.sum() == len(content)
    assert values["row_groups"] == len(groups) > 1
    # ClickHouse cuts where the blocks of its threads end.
    assert groups[0] == 8192 or (writer.name == "clickhouse" and groups[0] > 8192)


def test_a_level_leaves_fewer_bytes(servers: Servers, tmp_path: Path) -> None:
    sizes = {}
    for writer in WRITERS:
        tasks = [Task(f"zstd {level}", "codec", writer, codec, Options(codec))
                 for level in (1, 9) for codec in [Codec("zstd", level)]]  # fmt: skip
        with bench_of(servers, tmp_path, writer) as bench:
            found = [attempt(partial(bench.measured, task)) for task in tasks]
        if not isinstance(found[0], Skipped):
            sizes[writer.name] = [one.values[0]["file_bytes"] for one in found if isinstance(one, Ok)]
    assert len(sizes) >= len(WRITERS) - 1
    for name, (low, high) in sizes.items():  # both were written
        assert high < low, name


def test_chunks_add_up_to_what_the_file_says(tmp_path: Path) -> None:
    task = Task("groups", "codec", PYARROW, ZSTD_3, Options(ZSTD_3, 1000))
    path = tmp_path / "file.parquet"
    PYARROW.write(None, CONTENT, path, task.options)
    metadata = pq.read_metadata(path)
    found = files.chunks_of(task, metadata)
    assert len(found) == 3 * len(CONTENT.schema)
    for group in range(metadata.num_row_groups):
        mine = found.filter(row_group=group)
        assert mine["uncompressed_bytes"].sum() == metadata.row_group(group).total_byte_size
        assert set(mine["rows"]) == {metadata.row_group(group).num_rows}
    overhead = path.stat().st_size - found["compressed_bytes"].sum() - metadata.serialized_size
    assert 0 <= overhead <= 16  # magic numbers at both ends, and the length of the footer


# What counts as wrong


def other_value(client: Any, content: pa.Table, path: Path, options: Options) -> None:
    geom = content.column("geom").to_pylist()
    geom[1234] = "0102"
    PYARROW.write(client, content.set_column(3, "geom", pa.array(geom)), path, options)


def null_as_zero(client: Any, content: pa.Table, path: Path, options: Options) -> None:
    PYARROW.write(client, content.set_column(0, "revision", content["revision"].fill_null(0)), path, options)


def one_row_less(client: Any, content: pa.Table, path: Path, options: Options) -> None:
    PYARROW.write(client, content.slice(1), path, options)


def not_midnight(client: Any, content: pa.Table, path: Path, options: Options) -> None:
    late = pa.compute.add(content["to_date"].cast(pa.timestamp("ms")), pa.scalar(1000, pa.duration("ms")))
    PYARROW.write(client, content.set_column(2, "to_date", late), path, options)


def ignores_options(client: Any, content: pa.Table, path: Path, options: Options) -> None:
    PYARROW.write(client, content, path, Options(GZIP))


def broken(client: Any, content: pa.Table, path: Path, options: Options) -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (other_value, "column geom, row 1234: "),
        (null_as_zero, "content differs in revision"),
        (one_row_less, "2999 rows instead of 3000"),
        (not_midnight, "column to_date, row"),
        (ignores_options, "compressed with GZIP instead of SNAPPY"),
        (broken, "OSError: the disk is full"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_wrong_file_is_failed(write: writers.Write, reason: str, servers: Servers, tmp_path: Path) -> None:
    wrong = dataclasses.replace(PYARROW, write=write)
    with bench_of(servers, tmp_path, wrong) as bench:
        task = tasks_of((wrong,))[1]
        ended = attempt(lambda: bench.measured(task), tmp_path)
    assert isinstance(ended, Failed)  # which has neither times nor chunks
    assert reason in ended.reason
    assert str(tmp_path) not in ended.reason
    assert not [*tmp_path.iterdir()]


def test_rows_may_change_places_and_types_may_drift() -> None:
    moved = pa.concat_tables([CONTENT.slice(1000), CONTENT.slice(0, 1000)])
    assert difference(CONTENT, CONTENT) == (None, "exact", "kept")
    assert difference(moved, CONTENT) == (None, "exact", "changed")
    floats = CONTENT.set_column(0, "revision", CONTENT["revision"].cast(pa.float64()))
    assert difference(floats, CONTENT) == (None, "revision:double", "kept")
    twice = pa.concat_tables([CONTENT.slice(1), CONTENT.slice(1, 1)])
    assert difference(twice, CONTENT)[0] is not None


def test_a_missing_writer_is_skipped_with_the_remedy(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_server: object) -> Any:
        raise UnavailableError("point FRAMEHAUL_POSTGRES_EXTENSIONS at a directory where it is built")

    monkeypatch.setattr(writers, "open_psycopg_parquet_stream", unavailable)
    tasks = tasks_of((NAMED["pg_parquet"], PYARROW))
    recorded: list[tuple[Task, Pass[dict[str, Any]]]] = []
    with bench_of(servers, tmp_path, NAMED["pg_parquet"], PYARROW) as bench:
        in_rounds(
            tasks, Rounds(1, seed=1), lambda task, _: bench.measured(task)[0],
            lambda task, _, ended: recorded.append((task, ended)),
        )  # fmt: skip
    assert len(recorded) == len(tasks)
    for task, ended in recorded:
        skipped = task.writer.name == "pg_parquet"
        assert isinstance(ended, Skipped if skipped else Ok)
        assert isinstance(ended, Ok) or "FRAMEHAUL_POSTGRES_EXTENSIONS" in ended.reason


# What is computed


def test_chunks_barely_worth_compressing_are_counted_as_published() -> None:
    counts = parquet.to_one_decimal(chunks([0.4, 0.84, 0.86, 0.899, 0.9, 1.04]))
    assert counts == Counter({"0.9": 3, "0.4": 1, "0.8": 1, "1.0": 1})
    assert parquet.barely_share(counts) == pytest.approx(4 / 6)
    assert sum(parquet.PUBLISHED_RATIOS.values()) == 7 * 1987
    _, published, made = str(parquet.published_table(chunks([0.5, 0.95]))).split("\n")[1:]
    assert published.endswith("| 2.6:1 | 31% |")
    assert made.endswith("| 2.0:1 | 50% |")


# What a run leaves behind


@pytest.fixture(scope="module")
def run_out(servers: Servers, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        out = tmp_path_factory.mktemp("anatomy")
        patch.setenv("FRAMEHAUL_OUT", str(out))
        patch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
        parquet.run(rows=300, passes=2, warmup=1, seed=7)
        yield out


def test_every_offered_codec_was_tried_in_every_pass(run_out: Path) -> None:
    passes = store.read(run_out / "results" / STUDY.results, RoundTrip)
    tried = passes.filter(pl.col("part").is_in(["defaults", "codec"])).select("writer", "codec", "level", "pass").rows()
    assert Counter(tried) == Counter(
        (writer.name, codec.name, codec.level, number) for writer in WRITERS for codec in writer.offers
        for number in (1, 2)
    )  # fmt: skip
    for row in passes.to_dicts():
        assert (row["status"] == "ok") == (row["write_seconds"] is not None) == (row["reason"] is None), row
        assert row["status"] == "ok" or (row["status"], row["writer"]) == ("skipped", "pg_parquet"), row
    first, second = (passes.filter(pl.col("pass") == number)["trial"].to_list() for number in (1, 2))
    assert sorted(first) == sorted(second)
    assert first != second


def test_results_can_be_shown_without_a_run(run_out: Path) -> None:
    study = Anatomy.load()
    assert len(study.chunks.filter(trial="pyarrow_snappy")) == len(buildings.SCHEMA)
    for writer in WRITERS:
        assert f"| {writer.label} |" in str(study.writers())
    for listing in (study.encodings(), study.codecs(), study.published()):
        assert str(listing).count("\n") > len(WRITERS)
    assert study.missing() is not None
    assert study.answer().data.startswith("- Smallest file by default: ")
    study.codecs_chart()
    assert (run_out / "figures" / "parquet_codecs.svg").read_text().startswith("<?xml")
    blocks = parquet.writeup_blocks(run_out / "results")
    assert blocks["parquet-writers"] == str(study.writers())
    assert blocks["parquet-codecs"].count("\n") == 1 + len(PYARROW.offers)


def test_there_is_nothing_to_load_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="run the notebook"):
        parquet.writeup_blocks(tmp_path)
