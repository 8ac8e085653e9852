"""JSON lines to Parquet: the tools, what counts as right, what is missing, and what a run leaves behind."""

import sys
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from framehaul.errors import UnavailableError, WrongResultError
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.json_parquet import json_lines
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.json_parquet.study import CODECS, CONVERTERS
from tests.conftest import mostly_slow

ROWS, SEED = 17_000, 3  # more than one batch
CONTENT = buildings.table(ROWS, SEED)
DRIFT = {
    "fastparquet": "from_date:timestamp[us];to_date:timestamp[us]",
    "awkward": "revision:int64;from_date:string;to_date:string",
}


def written(content: pa.Table, directory: Path) -> Path:
    pl.DataFrame(content).write_ndjson(path := directory / "lines.jsonl")
    return path


@pytest.mark.parametrize("codec", mostly_slow(CODECS, lambda codec: codec == CODECS[0], str))
@pytest.mark.parametrize("converter", mostly_slow(CONVERTERS, lambda one: one in json_lines.CONVERSIONS, str))
def test_a_tool_writes_the_table(converter: str, codec: str, tmp_path: Path) -> None:
    try:
        command = CONVERTERS[converter][1](Settings())
    except UnavailableError as error:
        pytest.skip(str(error))
    found = json_parquet.measured(command, codec, written(CONTENT, tmp_path), CONTENT)
    assert found["types"] == DRIFT.get(converter, "exact")
    assert found["rows_per_s"] == pytest.approx(ROWS / found["seconds"])
    assert found["client_cpu_s"] > 0
    assert found["output_bytes"] > ROWS
    assert sys.platform != "linux" or converter == "json2parquet" or found["peak_rss_bytes"] > 0
    assert not list(tmp_path.glob("*.parquet"))


# What counts as right

TABLE = buildings.table(50, SEED)
EPOCH = pa.scalar(0, pa.int32()).cast(pa.date32())


def with_column(name: str, column: Any) -> pa.Table:
    return TABLE.set_column(TABLE.column_names.index(name), name, column)


@pytest.mark.parametrize(
    ("name", "kind", "types"),
    [
        ("revision", pa.float64(), "revision:double"),
        ("from_date", pa.large_string(), "from_date:string"),
        ("from_date", pa.timestamp("ms"), "from_date:timestamp[ms]"),
        ("geom", pa.large_string(), "exact"),
    ],
)
def test_other_types_and_another_order_are_said_and_are_not_wrong(name: str, kind: pa.DataType, types: str) -> None:
    table = with_column(name, TABLE[name].cast(kind))
    moved = pa.concat_tables([table.slice(40), table.slice(0, 40)])
    assert buildings.difference(table, TABLE) == (None, types, "kept")
    assert buildings.difference(moved, TABLE) == (None, types, "changed")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE.slice(1), "49 rows instead of 50"),
        (pa.concat_tables([TABLE.slice(1), TABLE.slice(1, 1)]), "content differs in "),
        (TABLE.drop_columns(["h3_9"]), "columns are revision, from_date, to_date, geom, h3_7, h3_8"),
        (with_column("h3_8", pa.array([*TABLE["h3_8"].to_pylist()[:-1], None])), "column h3_8, row 49: '"),
        (with_column("from_date", pc.add(TABLE["from_date"].cast(pa.timestamp("ms")), pa.scalar(1, pa.duration("ms")))),
         "column from_date, row "),
        (with_column("to_date", TABLE["to_date"].fill_null(EPOCH)), ": NULL became 1970-01-01"),
        (with_column("revision", TABLE["revision"].cast(pa.bool_())),
         f"column revision, row 0: {TABLE['revision'][0].as_py()} became True"),
    ],
)  # fmt: skip
def test_a_difference_is_found(table: pa.Table, said: str) -> None:
    found, _, row_order = buildings.difference(table, TABLE)
    assert said in (found or "")
    assert row_order == ""


# Tools that fail


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


LOSES = script("""
import sys, polars
_, codec, source, target = sys.argv[1:]
polars.read_ndjson(source)[1:].write_parquet(target, compression=codec)
""")
IGNORES_CODEC = script(
    "import polars, sys; polars.DataFrame({'a': [1]}).write_parquet(sys.argv[4], compression='zstd')"
)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (LOSES, "49 rows instead of 50"),
        (IGNORES_CODEC, "compressed with ZSTD instead of SNAPPY"),
        (script("raise ValueError('cannot write')"), "ValueError: cannot write"),
        (script("import sys; sys.exit('no more')"), "no more"),
        (script("import os; os.kill(os.getpid(), 9)"), "it ended with status -9 without a word"),
        (script(""), "the file cannot be read: .*"),
        (script("import time; time.sleep(60)"), "it did not end within 1 s"),
    ],
)
def test_a_tool_that_is_wrong_or_dies_or_never_ends_has_failed(
    command: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason.endswith(" s"):
        monkeypatch.setattr(json_parquet, "START_SECONDS", 1)
    with pytest.raises(WrongResultError, match=f"^{reason}$"):
        json_parquet.measured(command, "snappy", written(TABLE, tmp_path), TABLE)
    assert not list(tmp_path.glob("*.parquet"))


# What is missing


def test_json2parquet_of_another_version_is_left_to_make_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    settings = Settings(state_dir=tmp_path)
    program = settings.tools_dir / "bin" / "json2parquet"
    program.parent.mkdir(parents=True)
    for version in ("0.26.0", json_parquet.JSON2PARQUET_VERSION):
        with pytest.raises(UnavailableError, match=r"make tools builds it.*https://rustup\.rs"):
            json_parquet.json2parquet(settings)
        with pytest.raises(UnavailableError, match=r"there is no cargo on PATH.*https://rustup\.rs"):
            json_parquet.json2parquet_program(settings, patient=True)
        program.write_text(f"#!{sys.executable}\nprint('json2parquet {version}')\n")
        program.chmod(0o755)
    assert json_parquet.json2parquet_program(settings, patient=True) == program
    assert json_parquet.json2parquet(settings)[0] == str(program)


# What a run leaves behind


def test_a_run_measures_everything_once_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: Settings) -> list[str]:
        raise UnavailableError("there is no such tool: make one")

    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(tmp_path / "state"))
    chosen = {name: CONVERTERS[name] for name in ("clickhouse",)}
    chosen |= {"missing": ("Missing", not_there), "script": ("script", lambda _: LOSES)}
    monkeypatch.setattr(json_parquet, "CONVERTERS", chosen)
    passes = json_parquet.run(rows=50, rounds=2, warmup=0, seed=SEED)
    expected = product(chosen, CODECS, (1, 2))
    assert sorted(passes.select("converter", "codec", "pass").rows()) == sorted(expected)
    for row in passes.to_dicts():
        assert (row["status"] == "ok") == (row["reason"] is None) == (row["seconds"] is not None), row
    ended = passes.select("label", "status", "reason").unique().rows()
    assert ("Missing", "skipped", "there is no such tool: make one") in ended
    assert ("script", "failed", "49 rows instead of 50") in ended
