"""Who converts JSON lines of buildings to Parquet: each tool, and the command that is its process."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from framehaul.errors import UnavailableError
from framehaul.settings import Settings
from framehaul.studies.drivers import catalog
from framehaul.studies.drivers.catalog import Command
from framehaul.studies.warehouse import buildings

CODECS = ("snappy", "zstd")
JSON2PARQUET_VERSION = "0.26.1"
"""Of https://crates.io/crates/json2parquet, built with the versions of its dependencies that it was published with."""


@dataclass(frozen=True)
class Converter:
    """A tool: how tables and charts call it, the codecs that it offers, and the command that is its process.

    A tool for Python gets source, target, codec and a few lines, as `json_lines` reads them. A tool that is a `program`
    of its own gets codec, source and target, and its process is what is measured.
    """

    name: str
    label: str
    command: Command
    codecs: tuple[str, ...] = CODECS
    program: bool = False


def json2parquet(settings: Settings) -> list[str]:
    """The program of the article, in Rust; raises UnavailableError where it is not there."""
    schema = settings.tools_dir / "buildings.json"
    program = json2parquet_program(settings)
    schema.parent.mkdir(parents=True, exist_ok=True)
    schema.write_text(json.dumps({"fields": [*map(_rust_field, buildings.SCHEMA)], "metadata": {}}))
    return [str(program), "--schema-file", str(schema)]


def json2parquet_program(settings: Settings, *, patient: bool = False) -> Path:
    """Where json2parquet is: on PATH, or built here by the `patient`; raises UnavailableError."""
    target = settings.tools_dir
    built = target / "bin" / "json2parquet"
    on_path = shutil.which("json2parquet")
    for program in ([Path(on_path)] if on_path else []) + [built]:
        if _is_wanted(program):
            return program
    wanted = f"json2parquet {JSON2PARQUET_VERSION}"
    if not patient:
        raise UnavailableError(
            f"there is no {wanted}. make tools builds it, in about 5 minutes, with cargo (https://rustup.rs)"
        )
    catalog.find_tool("cargo", f"Rust, where no {wanted} is on PATH: install it (https://rustup.rs)")
    target.mkdir(parents=True, exist_ok=True)
    install = ["cargo", "install", "json2parquet", "--version", JSON2PARQUET_VERSION, "--locked", "--root", str(target)]
    catalog.build(install, target, "json2parquet was not built")
    return built


def _is_wanted(program: Path) -> bool:
    if not program.exists():
        return False
    return catalog.version_output(str(program), "--version").split() == ["json2parquet", JSON2PARQUET_VERSION]


def _rust_field(field: pa.Field) -> dict[str, Any]:
    """A field as Rust's Arrow writes its schema in JSON."""
    types = {pa.int32(): "Int32", pa.date32(): "Date32", pa.string(): "Utf8"}
    return {"name": field.name, "data_type": types[field.type], "nullable": True, "dict_id": 0,
            "dict_is_ordered": False, "metadata": {}}  # fmt: skip


def _python(name: str) -> Command:
    return lambda _: [sys.executable, "-m", "framehaul.studies.json_parquet.json_lines", name]


CONVERTERS = (
    Converter("clickhouse", "ClickHouse", _python("clickhouse")),
    Converter("pyarrow", "pyarrow", _python("pyarrow")),
    Converter("polars", "Polars", _python("polars")),
    Converter("duckdb", "DuckDB", _python("duckdb")),
    Converter("fastparquet", "fastparquet, pandas", _python("fastparquet")),
    Converter("awkward", "Awkward Array", _python("awkward")),
    Converter("json2parquet", "json2parquet, Rust", json2parquet, program=True),
)
