"""JSON lines to Parquet: the tools, what counts as right, what is missing, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from framehaul.errors import UnavailableError
from framehaul.harness.passes import Failed, Ok, Pass, Skipped
from framehaul.harness.rounds import Rounds
from framehaul.results import store
from framehaul.settings import Settings
from framehaul.studies.drivers.catalog import Commands, ProgramError
from framehaul.studies.json_parquet import STUDY, catalog, runner
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.json_parquet.catalog import CODECS, CONVERTERS, Converter
from framehaul.studies.json_parquet.runner import FEW_ROWS, Conversion, Files, Task
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


def test_nothing_is_left_of_the_files() -> None:
    with runner.written(5, SEED) as made:
        assert len(made.few_lines.read_text().splitlines()) == 5
    assert not made.directory.exists()


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
    if sys.platform == "linux":
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


# A round

FAKE = """
import json, sys
from pyarrow import parquet
from framehaul.studies.json_parquet import json_lines
honest = json_lines.pyarrow()
def convert(source, target, codec):
    honest(source, target, codec)
    table = parquet.read_table(target)
    {deed}
    parquet.write_table(table, target, compression=codec)
for line in sys.stdin:
    print(json.dumps(json_lines.converted(convert, json.loads(line))), flush=True)
"""


def fake(name: str, deed: str) -> Converter:
    return Converter(name, name, lambda _: [sys.executable, "-c", FAKE.format(deed=deed)], ("snappy",))


def script(name: str, text: str) -> Converter:
    return Converter(name, name, lambda _: [sys.executable, "-c", text], ("snappy",), program=True)


def outcomes(
    converters: list[Converter], files: Files, settings: Settings, passes: int = 1
) -> dict[str, list[Pass[dict[str, Any]]]]:
    found: dict[str, list[Pass[dict[str, Any]]]] = {}
    runner.convert_in_rounds(
        [Task(converter, "snappy") for converter in converters], files, Commands(settings), Rounds(passes, seed=1),
        lambda task, _, ended: found.setdefault(task.converter.name, []).append(ended),
    )  # fmt: skip
    return found


def test_a_tool_that_is_wrong_or_dies_has_failed_and_the_others_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no strace: this is about passes
    with runner.written(50, SEED) as few:
        found = outcomes(
            [
                fake("loses", "table = table.slice(1)"),
                fake("turns", "table = table.take(list(range(len(table)))[::-1])"),
                fake("dies", "sys.exit('worn out')"),
                fake("raises", "raise ValueError(f'cannot write {target}')"),
                script("stops", "import sys; sys.exit('no\\nmore')"),
                script("is_silent", "import os; os._exit(3)"),
                script("does_nothing", ""),
                fake("works", "pass"),
            ],
            few, settings, passes=2,
        )  # fmt: skip
    reasons = {name: [None if isinstance(ended, Ok) else ended.reason for ended in each]
               for name, each in found.items()}  # fmt: skip
    turned = reasons.pop("turns")
    assert turned == [None, None]
    assert {ended.values["row_order"] for ended in found["turns"] if isinstance(ended, Ok)} == {"changed"}
    assert reasons == {
        "loses": ["49 rows instead of 50"] * 2,
        "dies": ["worn out"] * 2,
        "raises": ["ValueError: cannot write few-raises-snappy.parquet"] * 2,
        "stops": ["no more"] * 2,
        "is_silent": ["the program ended with status 3 without a word"] * 2,
        "does_nothing": ["no file was written"] * 2,
        "works": [None] * 2,
    }
    for name, each in found.items():
        for ended in each:
            assert isinstance(ended, Ok if name in ("works", "turns") else Failed)
            assert isinstance(ended, Failed) or "seconds" in ended.values


def test_an_interrupt_ends_the_work_between_two_tasks(files: Files, settings: Settings) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        runner.convert_in_rounds(
            [Task(CONVERTERS[0], "snappy")], files, Commands(settings), Rounds(1, seed=1), lambda *_: None, stop=stop
        )


def test_what_an_interrupted_run_has_left_is_neither_traced_nor_run_again(
    files: Files, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[tuple[str, str]] = []

    def working(name: str) -> Any:
        def work(task: Task, *_: object) -> dict[str, Any]:
            worked.append((name, task.converter.name))
            return {name: 1}

        return work

    for name in ("write_calls", "measured"):
        monkeypatch.setattr(runner, name, working(name))
    recorded: list[tuple[str, int, Pass[dict[str, Any]]]] = []
    runner.convert_in_rounds(
        [Task(script(name, ""), "snappy") for name in ("whole", "half")], files, Commands(settings), Rounds(2, seed=1),
        lambda task, number, ended: recorded.append((task.converter.name, number, ended)),
        finished=lambda task, number: task.converter.name == "whole" or number == 1,
    )  # fmt: skip
    assert worked == [("write_calls", "half"), ("measured", "half")]
    assert recorded == [("half", 2, Ok({"measured": 1, "write_calls": 1}))]


# System calls

PIECES = """
import sys
from pathlib import Path
from framehaul.studies.json_parquet import json_lines
_, codec, source, target = sys.argv[1:]
json_lines.pyarrow()(Path(source), Path(target + ".whole"), codec)
content = Path(target + ".whole").read_bytes()
Path(target + ".whole").unlink()
with open(target, "wb", buffering=0) as file:
    for at in range(5):
        file.write(content[at::5])
print("done" * 100)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace on PATH")
def test_write_calls_into_the_file_are_counted(files: Files, settings: Settings) -> None:
    program = script("pieces", PIECES)
    found = runner.write_calls(Task(program, "snappy"), program.command(settings), files)
    assert found == {"write_calls": 5, "write_calls_few_rows": 5}
    tool = CONVERTERS[0]
    found = runner.write_calls(Task(tool, "snappy"), tool.command(settings), files)
    assert found["write_calls"] >= found["write_calls_few_rows"] >= 1
    assert not list(files.directory.glob("*.parquet"))
    assert not list(files.directory.glob("*.log"))


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace on PATH")
def test_a_tool_that_cannot_be_traced_says_why(files: Files, settings: Settings) -> None:
    broken = script("broken", "import sys; sys.exit('no ground')")
    with pytest.raises(ProgramError, match=r"^under strace it failed: no ground$"):
        runner.write_calls(Task(broken, "snappy"), broken.command(settings), files)


def test_why_calls_were_not_counted_is_kept_with_the_passes(
    files: Files, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ProgramError(f"under strace it failed: {files.directory}/few.parquet")

    monkeypatch.setattr(runner, "write_calls", failing)
    for ended in outcomes([PYTHON[1]], files, settings, passes=2)[PYTHON[1].name]:
        assert isinstance(ended, Ok)
        assert ended.values["write_calls_reason"] == "under strace it failed: few.parquet"


# What is missing


def test_without_json2parquet_and_strace_both_are_said_and_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files
) -> None:
    told = with_cargo(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = outcomes([CONVERTERS[-1], PYTHON[0]], files, Settings(state_dir=tmp_path / "state"))
    (skipped,) = found["json2parquet"]
    assert isinstance(skipped, Skipped)
    assert "make tools builds it" in skipped.reason
    assert "https://rustup.rs" in skipped.reason
    assert not told.exists()
    (ran,) = found[PYTHON[0].name]
    assert isinstance(ran, Ok)
    assert "install it (https://strace.io)" in ran.values["write_calls_reason"]
    assert "write_calls" not in ran.values
    assert ran.values["seconds"] > 0


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


def test_without_cargo_it_is_said_what_a_build_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="there is no cargo on PATH") as raised:
        catalog.json2parquet_program(Settings(state_dir=tmp_path / "state"), patient=True)
    assert "https://rustup.rs" in str(raised.value)


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


def test_a_json2parquet_on_path_is_used_when_it_is_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = with_cargo(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    mine = tmp_path / "json2parquet"
    for version, used in (("0.0.1", False), (catalog.JSON2PARQUET_VERSION, True)):
        mine.write_text(f"#!{sys.executable}\nprint('json2parquet {version}')\n")
        mine.chmod(0o755)
        program = catalog.json2parquet_program(Settings(state_dir=tmp_path / "state" / version), patient=True)
        assert (program == mine) == used
    assert told.read_text().count("install") == 1


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
    fastest = next(line for line in table.splitlines() if "| snappy | " in line)
    assert "| 1.00x (1.00 to 1.00 in 2 rounds) |" in fastest
    assert "| snappy | Missing | skipped |" in table
    assert "| snappy | Wrong | failed |" in table
    for made in (study.cores(), study.outputs(), study.writes()):
        assert str(made).count("\n") == 1 + 6
    assert "revision: int64; from_date, to_date: string" in str(study.outputs())
    published = str(study.published())
    assert "| Awkward Array | " in published
    assert "| 1.5x |" in published
    assert "| Wrong | failed |  |  |  |" in published
    missing = str(study.missing())
    assert "| Missing | skipped | snappy | there is no such tool: make one |" in missing
    assert "| Wrong | failed | snappy | 39 rows instead of 40 |" in missing
    assert "40 rows" in str(study.versions().data)
    text = str(study.chart().data)
    assert "DuckDB" in text
    assert "FAILED: 39 rows instead of 40" in text
    assert "skipped" in text
    assert "The types are the table's own with " in str(study.findings().data)


def test_a_run_is_read_again_for_the_readme(study: JsonToParquet, tmp_path: Path) -> None:
    path = tmp_path / STUDY.results
    study.passes.write_csv(path)
    assert store.read(path, Conversion).equals(study.passes)
    (block,) = json_parquet.writeup_blocks(tmp_path).items()
    assert block == ("json-to-parquet", str(study.published()))


def passes_of(seconds: dict[str, list[float]]) -> pl.DataFrame:
    rows = [
        dataclasses.asdict(
            Conversion(
                run_id="r", converter=tool, label=tool, codec="snappy", rows=1000, pass_=number, seconds=each,
                rows_per_s=1000 / each, client_cpu_s=2 * each, cores_used=2.0, output_bytes=10, row_groups=1,
                types="exact",
            )
        )
        for tool, times in seconds.items() for number, each in enumerate(times, 1)
    ]  # fmt: skip
    frame = pl.DataFrame(rows, infer_schema_length=None).rename({"pass_": "pass"})
    kinds: Any = store.schema_of(Conversion)
    return frame.cast(kinds)


def test_ratios_are_of_time() -> None:
    passes = passes_of({"clickhouse": [1.0] * 3, "pyarrow": [2.0] * 3, "awkward": [1.5] * 3, "polars": [0.5] * 3})
    assert str(json_parquet.times(passes, "snappy", "pyarrow", "clickhouse")) == "2.00x (2.00 to 2.00 in 3 rounds)"
    lines = str(json_parquet.times_table(passes)).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["polars", "clickhouse", "awkward", "pyarrow"]
    assert "| 4.00x (4.00 to 4.00 in 3 rounds) | 2.00x (2.00 to 2.00 in 3 rounds) |" in lines[-1]
    said = str(json_parquet.published_table(passes))
    assert "| pyarrow | 2.000 | 1.38x | 2.00x (2.00 to 2.00 in 3 rounds) | slower |" in said
    assert "| awkward | 1.500 | 1.5x | 1.50x (1.50 to 1.50 in 3 rounds) | inconclusive |" in said
    assert "| polars | 0.500 |  | 0.50x (0.50 to 0.50 in 3 rounds) |  |" in said
    assert json_parquet.findings(passes)[0] == "snappy: polars is the fastest with 2k rows/s."


def test_a_tool_that_is_as_fast_is_not_told_apart() -> None:
    passes = passes_of({"clickhouse": [1.0, 1.2, 1.0], "duckdb": [1.1, 1.0, 1.1]})
    assert json_parquet.findings(passes)[0] == (
        "snappy: clickhouse is the fastest with 1k rows/s; not told apart from it: duckdb."
    )


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"passes": 0}, {"warmup": -1}, {"rows": 1.5}])
def test_a_parameter_that_makes_no_sense_is_named(wrong: dict[str, Any]) -> None:
    parameters = {"rows": 1, "passes": 1, "warmup": 0, "seed": 1} | wrong
    with pytest.raises(ValueError, match=f"{next(iter(wrong)).upper()}="):
        json_parquet.run(**parameters)
