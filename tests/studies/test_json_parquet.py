"""JSON lines to Parquet: the tools, what counts as right, what is missing, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from framehaul.errors import UnavailableError, WrongResultError
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.json_parquet.study import CODECS, CONVERTERS, Converter
from tests.conftest import mostly_slow

ROWS, SEED = 17_000, 3  # more than one batch
CONTENT = buildings.table(ROWS, SEED)
DRIFT = {
    "fastparquet": "from_date:timestamp[us];to_date:timestamp[us]",
    "awkward": "revision:int64;from_date:string;to_date:string",
}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return json_parquet.written(CONTENT, tmp_path)


def test_lines_say_what_the_table_says(lines: Path) -> None:
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert rows == [row | {name: row[name] and row[name].isoformat() for name in ("from_date", "to_date")}
                    for row in CONTENT.to_pylist()]  # fmt: skip
    assert any(row["from_date"] is None for row in rows)
    few = (lines.parent / "few.jsonl").read_text()
    assert few.splitlines() == lines.read_text().splitlines()[: json_parquet.FEW_ROWS]


@pytest.mark.parametrize("codec", mostly_slow(CODECS, lambda codec: codec == CODECS[0], str))
@pytest.mark.parametrize("converter", CONVERTERS[:-1], ids=lambda converter: converter.name)
def test_a_tool_writes_the_table(converter: Converter, codec: str, lines: Path, settings: Settings) -> None:
    found = json_parquet.measured(converter.command(settings), codec, lines, CONTENT)
    assert found["types"] == DRIFT.get(converter.name, "exact")
    assert found["rows_per_s"] == pytest.approx(ROWS / found["seconds"])
    assert found["client_cpu_s"] > 0
    assert found["output_bytes"] > ROWS
    assert sys.platform != "linux" or found["peak_rss_bytes"] > 0
    assert not list(lines.parent.glob("*.parquet"))


@pytest.mark.slow
def test_json2parquet_writes_the_table(lines: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("cargo"):
        pytest.skip("there is no cargo on PATH")
    # What it writes is the same, and a build takes a third: https://doc.rust-lang.org/cargo/reference/profiles.html
    for name, value in {"OPT_LEVEL": "0", "LTO": "off", "CODEGEN_UNITS": "16", "DEBUG": "false"}.items():
        monkeypatch.setenv(f"CARGO_PROFILE_RELEASE_{name}", value)
    json_parquet.json2parquet_program(settings, patient=True)
    for codec in CODECS:
        found = json_parquet.measured(CONVERTERS[-1].command(settings), codec, lines, CONTENT)
        assert found["types"] == "exact"
        assert found["client_cpu_s"] > 0


# What counts as right

TABLE = buildings.table(50, SEED)
EPOCH = pa.scalar(0, pa.int32()).cast(pa.date32())


def with_column(name: str, column: Any) -> pa.Table:
    return TABLE.set_column(TABLE.column_names.index(name), name, column)


def with_value(name: str, at: int, value: Any) -> pa.Table:
    values = TABLE[name].to_pylist()
    values[at] = value
    return with_column(name, pa.array(values, TABLE[name].type))


@pytest.mark.parametrize(
    ("name", "kind", "types"),
    [
        ("revision", pa.int64(), "revision:int64"),
        ("revision", pa.float64(), "revision:double"),
        ("from_date", pa.large_string(), "from_date:string"),
        ("from_date", pa.timestamp("ms"), "from_date:timestamp[ms]"),
        ("geom", pa.large_string(), "exact"),
    ],
)
def test_other_types_and_another_order_are_said_and_are_not_wrong(
    name: str, kind: pa.DataType, types: str, tmp_path: Path
) -> None:
    path, table = tmp_path / "table.parquet", with_column(name, TABLE[name].cast(kind))
    for at, order in ((0, "kept"), (40, "changed")):
        moved = pa.concat_tables([table.slice(at), table.slice(0, at)])
        pq.write_table(moved, path, compression="zstd", row_group_size=20)
        assert json_parquet.difference(path, TABLE, "zstd") == (None, types, order)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE.slice(1), "49 rows instead of 50"),
        (pa.concat_tables([TABLE.slice(1), TABLE.slice(1, 1)]), "content differs in "),
        (TABLE.drop_columns(["h3_9"]), "columns are revision, from_date, to_date, geom, h3_7, h3_8"),
        (with_value("h3_8", 31, "elsewhere"), f"column h3_8, row 31: {TABLE['h3_8'][31].as_py()!r} became 'elsewhere'"),
        (with_value("revision", 7, None), f"column revision, row 7: {TABLE['revision'][7].as_py()} became NULL"),
        (with_column("from_date", pc.add(TABLE["from_date"].cast(pa.timestamp("ms")), pa.scalar(1, pa.duration("ms")))),
         "column from_date, row "),
        (with_column("to_date", TABLE["to_date"].fill_null(EPOCH)), ": NULL became 1970-01-01"),
        (with_column("revision", TABLE["revision"].cast(pa.bool_())),
         f"column revision, row 0: {TABLE['revision'][0].as_py()} became True"),
    ],
)  # fmt: skip
def test_a_difference_is_found(table: pa.Table, said: str, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=20)
    found, _, row_order = json_parquet.difference(path, TABLE, "zstd")
    assert said in (found or "")
    assert row_order == ""


def test_another_codec_and_what_is_no_file_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_text("this is no Parquet")
    assert str(json_parquet.difference(path, TABLE, "zstd")[0]).startswith("the file cannot be read: ")
    pq.write_table(TABLE, path, compression="snappy")
    assert json_parquet.difference(path, TABLE, "zstd")[0] == "compressed with SNAPPY instead of ZSTD"


# Tools that fail


def script(text: str) -> Converter:
    return Converter("script", "script", lambda _: [sys.executable, "-c", text])


LOSES = script("""
import sys
from pathlib import Path
from pyarrow import parquet
from framehaul.studies.json_parquet import json_lines
_, codec, source, target = sys.argv[1:]
json_lines.pyarrow(Path(source), Path(target), codec)
parquet.write_table(parquet.read_table(target).slice(1), target, compression=codec)
""")


@pytest.mark.parametrize(
    ("converter", "reason"),
    [
        (LOSES, "49 rows instead of 50"),
        (script("raise ValueError('cannot write')"), "ValueError: cannot write"),
        (script("import sys; sys.exit('no more')"), "no more"),
        (script("import os; os.kill(os.getpid(), 9)"), "it ended with status -9 without a word"),
        (script(""), "the file cannot be read: .*"),
        (script("import time; time.sleep(60)"), "it did not end within 1 s"),
    ],
)
def test_a_tool_that_is_wrong_or_dies_or_never_ends_has_failed(
    converter: Converter, reason: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason.endswith(" s"):
        monkeypatch.setattr(json_parquet, "START_SECONDS", 1)
    lines = json_parquet.written(TABLE, tmp_path)
    with pytest.raises(WrongResultError, match=f"^{reason}$"):
        json_parquet.measured(converter.command(settings), "snappy", lines, TABLE)
    assert not list(tmp_path.glob("*.parquet"))


# What is missing

CARGO = """#!{python}
import sys
from pathlib import Path
print("error: nothing fits in here", file=sys.stderr)
program = Path(sys.argv[sys.argv.index("--root") + 1]) / "bin" / "json2parquet"
if {status}:
    sys.exit({status})
program.parent.mkdir()
program.write_text("#!{python}\\nprint('json2parquet {version}')\\n")
program.chmod(0o755)
"""


def test_json2parquet_is_built_for_the_patient_alone_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/nowhere")
    settings, cargo = Settings(state_dir=tmp_path / "state"), tmp_path / "cargo"
    with pytest.raises(UnavailableError, match=r"make tools builds it.*https://rustup\.rs"):
        json_parquet.json2parquet(settings)
    with pytest.raises(UnavailableError, match=r"there is no cargo on PATH.*https://rustup\.rs"):
        json_parquet.json2parquet_program(settings, patient=True)
    for status in (1, 0):
        cargo.write_text(CARGO.format(python=sys.executable, version=json_parquet.JSON2PARQUET_VERSION, status=status))
        cargo.chmod(0o755)
        if status:
            with pytest.raises(UnavailableError, match="json2parquet was not built: cargo install said: see above"):
                json_parquet.json2parquet_program(settings, patient=True)
            assert "error: nothing fits in" in capfd.readouterr().err
    program = tmp_path / "state" / "tools" / "bin" / "json2parquet"
    assert json_parquet.json2parquet_program(settings, patient=True) == program
    cargo.unlink()
    assert json_parquet.json2parquet_program(settings, patient=True) == program
    assert json_parquet.json2parquet(settings)[0] == str(program)


# What a run leaves behind


def test_a_run_measures_everything_once_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: Settings) -> list[str]:
        raise UnavailableError("there is no such tool: make one")

    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(tmp_path / "state"))
    chosen = [converter for converter in CONVERTERS if converter.name in ("clickhouse", "duckdb", "awkward")]
    chosen += [Converter("missing", "Missing", not_there), LOSES]
    passes = json_parquet.run(rows=50, rounds=2, warmup=0, seed=SEED, converters=(*chosen,))
    expected = product([tool.name for tool in chosen], CODECS, (1, 2))
    assert sorted(passes.select("converter", "codec", "pass").rows()) == sorted(expected)
    for row in passes.to_dicts():
        assert (row["status"] == "ok") == (row["reason"] is None) == (row["seconds"] is not None), row
    ended = passes.select("label", "status", "reason").unique().rows()
    assert ("Missing", "skipped", "there is no such tool: make one") in ended
    assert ("script", "failed", "49 rows instead of 50") in ended
