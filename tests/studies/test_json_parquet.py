"""JSON lines to Parquet: the tools, what counts as right, what is missing, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from framehaul.errors import UnavailableError, WrongResultError
from framehaul.settings import Settings
from framehaul.studies.json_parquet import catalog, runner
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.json_parquet.catalog import CODECS, CONVERTERS, Converter
from framehaul.studies.json_parquet.runner import FEW_ROWS, Files, Task
from framehaul.studies.json_parquet.study import JsonToParquet
from framehaul.studies.warehouse import buildings
from tests.conftest import mostly_slow

ROWS, SEED = 17_000, 3  # more than one batch
PYTHON = [converter for converter in CONVERTERS if not converter.program]
DRIFT = {
    "fastparquet": "from_date:timestamp[us];to_date:timestamp[us]",
    "awkward": "revision:int64;from_date:string;to_date:string",
}


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    with runner.written(ROWS, SEED) as made:
        yield made


# What is converted


def test_lines_say_what_the_table_says(files: Files) -> None:
    rows = [json.loads(line) for line in files.lines.read_text().splitlines()]
    table = buildings.table(ROWS, SEED)
    assert rows == [row | {name: row[name] and row[name].isoformat() for name in ("from_date", "to_date")}
                    for row in table.to_pylist()]  # fmt: skip
    assert any(row["from_date"] is None for row in rows)
    assert files.expected.equals(table)
    assert files.few_lines.read_text().splitlines() == files.lines.read_text().splitlines()[:FEW_ROWS]


# Each tool


@pytest.mark.parametrize("codec", mostly_slow(CODECS, lambda codec: codec == CODECS[0], str))
@pytest.mark.parametrize("converter", PYTHON, ids=lambda converter: converter.name)
def test_a_tool_writes_the_table(converter: Converter, codec: str, files: Files, settings: Settings) -> None:
    check_tool(converter, codec, files, settings)


@pytest.mark.slow
def test_json2parquet_writes_the_table(files: Files, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (shutil.which("cargo") or shutil.which("json2parquet")):
        pytest.skip("there is no cargo on PATH")
    # What it writes is the same, and a build takes a third: https://doc.rust-lang.org/cargo/reference/profiles.html
    for name, value in {"OPT_LEVEL": "0", "LTO": "off", "CODEGEN_UNITS": "16", "DEBUG": "false"}.items():
        monkeypatch.setenv(f"CARGO_PROFILE_RELEASE_{name}", value)
    catalog.json2parquet_program(settings, patient=True)
    for codec in CODECS:
        check_tool(CONVERTERS[-1], codec, files, settings)


def check_tool(converter: Converter, codec: str, files: Files, settings: Settings) -> None:
    found = runner.measured(Task(converter, codec), converter.command(settings), files)
    assert found["types"] == DRIFT.get(converter.name, "exact")
    assert found["rows_per_s"] == pytest.approx(ROWS / found["seconds"])
    assert found["cores_used"] == pytest.approx(found["client_cpu_s"] / found["seconds"])
    assert found["client_cpu_s"] > 0
    assert found["output_bytes"] > ROWS
    assert found["row_groups"] >= 1
    if sys.platform == "linux" and not converter.program:  # of a program of its own memory is not measured
        assert found["peak_rss_bytes"] > 0
    assert not list(files.directory.glob("*.parquet"))


# What counts as right

TABLE = buildings.table(50, SEED)


def with_column(name: str, column: Any) -> pa.Table:
    return TABLE.set_column(TABLE.column_names.index(name), name, column)


def with_value(name: str, at: int, value: Any) -> pa.Table:
    values = TABLE[name].to_pylist()
    values[at] = value
    return with_column(name, pa.array(values, TABLE[name].type))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE, None),
        (with_column("revision", TABLE["revision"].cast(pa.int64())), None),
        (with_column("revision", TABLE["revision"].cast(pa.float64())), None),
        (with_column("from_date", TABLE["from_date"].cast(pa.string())), None),
        (with_column("from_date", TABLE["from_date"].cast(pa.timestamp("ms"))), None),
        (with_column("geom", TABLE["geom"].cast(pa.large_string())), None),
        (TABLE.slice(1), "49 rows instead of 50"),
        (pa.concat_tables([TABLE, TABLE.slice(0, 1)]), "51 rows instead of 50"),
        (TABLE.drop_columns(["h3_9"]), "columns are revision, from_date, to_date, geom, h3_7, h3_8"),
        (with_value("h3_8", 31, "elsewhere"), f"column h3_8, row 31: {TABLE['h3_8'][31].as_py()!r} became 'elsewhere'"),
        (with_value("revision", 7, None), f"column revision, row 7: {TABLE['revision'][7].as_py()} became NULL"),
        (with_column("from_date", pc.add(TABLE["from_date"].cast(pa.timestamp("ms")), pa.scalar(1, pa.duration("ms")))),
         "column from_date, row "),
        (with_column("to_date", TABLE["to_date"].fill_null(pa.scalar(0, pa.int32()).cast(pa.date32()))),
         "column to_date, row "),
        (with_column("to_date", TABLE["to_date"].fill_null(pa.scalar(0, pa.int32()).cast(pa.date32()))),
         ": NULL became 1970-01-01"),
        (with_column("revision", TABLE["revision"].cast(pa.bool_())),
         f"column revision, row 0: {TABLE['revision'][0].as_py()} became True"),
    ],
)  # fmt: skip
def test_a_difference_is_found(table: pa.Table, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=20)
    found, row_order = runner.difference(path, TABLE, "zstd")
    assert found is None if said is None else found is not None and said in found
    assert row_order == ("kept" if said is None else "")


@pytest.mark.parametrize("date", [pa.date32(), pa.string(), pa.timestamp("ms")])
def test_another_order_of_rows_is_said_and_is_not_wrong(date: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    moved = with_column("from_date", TABLE["from_date"].cast(date)).take(pa.array([*range(40, 50), *range(40)]))
    pq.write_table(moved, path, compression="zstd", row_group_size=20)
    assert runner.difference(path, TABLE, "zstd") == (None, "changed")
    doubled = moved.take(pa.array([0, *range(49)]))
    pq.write_table(doubled, path, compression="zstd", row_group_size=20)
    assert runner.difference(path, TABLE, "zstd")[0] is not None


def test_another_codec_and_what_is_no_file_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    assert runner.difference(path, TABLE, "zstd")[0] == "no file was written"
    path.write_text("this is no Parquet")
    assert str(runner.difference(path, TABLE, "zstd")[0]).startswith("the file cannot be read: ")
    pq.write_table(TABLE, path, compression="snappy")
    assert runner.difference(path, TABLE, "zstd")[0] == "compressed with SNAPPY instead of ZSTD"


def test_a_longer_text_is_no_other_type() -> None:
    assert runner.types_text(TABLE.schema) == "exact"
    drifted = with_column("from_date", TABLE["from_date"].cast(pa.large_string()))
    assert runner.types_text(drifted.schema) == "from_date:string"


# Tools that fail


def fake(name: str, deed: str) -> Converter:
    """A tool that writes another table than it should: `deed` changes what pyarrow has read."""
    code = f"""
import json, sys
from pathlib import Path
from pyarrow import parquet
from framehaul.studies.json_parquet import json_lines
source, target, codec, _ = sys.argv[1:]
json_lines.pyarrow()(Path(source), Path(target), codec)
table = parquet.read_table(target)
{deed}
parquet.write_table(table, target, compression=codec)
print(json.dumps({{"seconds": 1.0, "client_cpu_s": 1.0, "peak_rss_bytes": None}}))
"""
    return Converter(name, name, lambda _: [sys.executable, "-c", code], ("snappy",))


def script(text: str) -> Converter:
    return Converter("script", "script", lambda _: [sys.executable, "-c", text], ("snappy",), program=True)


@pytest.mark.parametrize(
    ("converter", "reason"),
    [
        (fake("loses", "table = table.slice(1)"), "49 rows instead of 50"),
        (fake("dies", "sys.exit('worn out')"), "worn out"),
        (fake("raises", "raise ValueError('cannot write')"), "ValueError: cannot write"),
        (fake("stops", "sys.exit(0)"), "it did not print what the conversion took"),
        (script("import sys; sys.exit('no more')"), "no more"),
        (script("import os; os._exit(3)"), "it ended with status 3 without a word"),
        (script("import os; os.kill(os.getpid(), 9)"), "it ended with status -9 without a word"),
        (script(""), "no file was written"),
    ],
)
def test_a_tool_that_is_wrong_or_dies_has_failed(converter: Converter, reason: str, settings: Settings) -> None:
    with runner.written(50, SEED) as few:
        with pytest.raises(WrongResultError, match=f"^{reason}$"):
            runner.measured(Task(converter, "snappy"), converter.command(settings), few)
        assert not list(few.directory.glob("*.parquet"))


def test_a_tool_that_turns_rows_round_is_right(settings: Settings) -> None:
    tool = fake("turns", "table = table.take(list(range(len(table)))[::-1])")
    with runner.written(50, SEED) as few:
        assert runner.measured(Task(tool, "snappy"), tool.command(settings), few)["row_order"] == "changed"


def test_a_tool_that_never_ends_is_ended(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "START_SECONDS", 1)
    tool, start = script("import time; time.sleep(60)"), time.monotonic()
    with runner.written(20, SEED) as few, pytest.raises(WrongResultError, match="it did not end within 1 s"):
        runner.measured(Task(tool, "snappy"), tool.command(settings), few)
    assert time.monotonic() - start < 30


# What is missing


def test_without_json2parquet_nothing_is_built_and_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = with_cargo(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"make tools builds it.*https://rustup\.rs"):
        catalog.json2parquet(Settings(state_dir=tmp_path / "state"))
    assert not told.exists()


CARGO = """#!{python}
import os, sys
from pathlib import Path
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
root = Path(sys.argv[sys.argv.index("--root") + 1])
if {broken}:
    sys.exit(f"error: nothing fits in {{root}}/bin")
(root / "bin").mkdir(parents=True)
program = root / "bin" / "json2parquet"
program.write_text("#!{python}\\nprint('json2parquet {version}')\\n")
program.chmod(0o755)
"""


def with_cargo(directory: Path, *, broken: bool = False) -> Path:
    """A cargo that builds at once; returns the record of what it was told."""
    log = directory / "told"
    text = CARGO.format(python=sys.executable, log=str(log), broken=broken, version=catalog.JSON2PARQUET_VERSION)
    (directory / "cargo").write_text(text)
    (directory / "cargo").chmod(0o755)
    return log


def test_json2parquet_is_built_once_and_found_after_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = with_cargo(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings(state_dir=tmp_path / "state")
    root = tmp_path / "state" / "tools"
    for _ in range(2):
        assert catalog.json2parquet_program(settings, patient=True) == root / "bin" / "json2parquet"
    assert catalog.json2parquet(settings)[0] == str(root / "bin" / "json2parquet")
    assert told.read_text() == (
        f"install json2parquet --version {catalog.JSON2PARQUET_VERSION} --locked --root {root}\n"
    )


def test_a_build_that_fails_says_what_cargo_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with_cargo(tmp_path, broken=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="json2parquet was not built: cargo install said: see above"):
        catalog.json2parquet_program(Settings(state_dir=tmp_path / "state"), patient=True)
    assert "error: nothing fits in" in capfd.readouterr().err


# What a run leaves behind


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonToParquet]:
    """A tiny run of three tools, and one that is not there."""

    def not_there(_: Settings) -> list[str]:
        raise UnavailableError("there is no such tool: make one")

    directory = tmp_path_factory.mktemp("json-out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAMEHAUL_OUT", str(directory))
        patch.setenv("FRAMEHAUL_STATE_DIR", str(directory / "state"))
        chosen = [converter for converter in CONVERTERS if converter.name in ("clickhouse", "duckdb", "awkward")]
        missing = Converter("missing", "Missing", not_there, ("snappy",))
        wrong = dataclasses.replace(fake("wrong", "table = table.slice(1)"), label="Wrong")
        yield json_parquet.run(rows=40, passes=2, warmup=0, seed=SEED, converters=[*chosen, missing, wrong])


def test_each_round_runs_everything_once(study: JsonToParquet) -> None:
    passes = study.passes
    expected = {(tool, codec) for tool in ("clickhouse", "duckdb", "awkward") for codec in CODECS}
    expected |= {("missing", "snappy"), ("wrong", "snappy")}
    first, second = (passes.filter(pl.col("pass") == number).select("converter", "codec").rows() for number in (1, 2))
    assert set(first) == set(second) == expected
    assert len(first) == len(second) == len(expected)
    assert first != second
    assert passes["pass"].is_sorted()
    for row in passes.to_dicts():
        assert (row["status"] == "ok") == (row["reason"] is None) == (row["seconds"] is not None), row


def test_tables_and_chart_can_be_made_of_a_run(study: JsonToParquet) -> None:
    table = str(study.table())
    assert table.count("\n") == 1 + 8
    assert "| snappy | Missing | skipped |" in table
    assert "| snappy | Wrong | failed |" in table
    assert "| 1.50x |" in next(line for line in table.splitlines() if "| snappy | Awkward Array |" in line)
    assert "revision: int64; from_date, to_date: string" in table
    missing = str(study.missing())
    assert "| Missing | skipped | snappy | there is no such tool: make one |" in missing
    assert "| Wrong | failed | snappy | 39 rows instead of 40 |" in missing
    text = str(study.chart().data)
    assert "DuckDB" in text
    assert "FAILED: 39 rows instead of 40" in text
    assert "| snappy | " in str(study.answer())


def test_ratios_are_of_time() -> None:
    rows = [
        {"converter": tool, "codec": "snappy", "rows": 10, "pass": number, "rows_per_s": 10 / seconds, "status": "ok"}
        for tool, seconds in (("clickhouse", 1.0), ("pyarrow", 2.0))
        for number in (1, 2, 3)
    ]
    found = json_parquet.times(pl.DataFrame(rows), "snappy", "pyarrow", "clickhouse")
    assert str(found) == "2.00x (2.00 to 2.00 in 3 rounds)"
