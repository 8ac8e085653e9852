"""Who converts JSON lines of buildings to Parquet: each tool, and the command that is its process."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

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

    The command of a tool for Python speaks the protocol of `json_lines`. A tool that is a `program` of its own gets
    codec, source and target as `arguments_of` lays them out, and converts once.
    """

    name: str
    label: str
    command: Command
    codecs: tuple[str, ...] = CODECS
    program: bool = False


def json2parquet(settings: Settings) -> list[str]:
    """The program of the article, in Rust; raises UnavailableError when it cannot be built."""
    target = settings.state_dir / "drivers" / "json2parquet"
    built = target / "bin" / "json2parquet"
    there = [Path(path) for path in (shutil.which("json2parquet"), built) if path is not None]
    program = next((path for path in there if _is_wanted(path)), None) or _build(target)
    schema = target / "buildings.json"
    schema.parent.mkdir(parents=True, exist_ok=True)
    schema.write_text(json.dumps({"fields": [*map(_rust_field, buildings.SCHEMA)], "metadata": {}}))
    return [str(program), "--schema-file", str(schema)]


def _is_wanted(program: Path) -> bool:
    if not program.exists():
        return False
    return catalog.version_output(str(program), "--version").split() == ["json2parquet", JSON2PARQUET_VERSION]


def _build(target: Path) -> Path:
    there_is_none = f"Rust, where no json2parquet {JSON2PARQUET_VERSION} is on PATH: install it (https://rustup.rs)"
    catalog.find_tool("cargo", there_is_none)
    target.mkdir(parents=True, exist_ok=True)
    install = ["cargo", "install", "json2parquet", "--version", JSON2PARQUET_VERSION, "--locked", "--root", str(target)]
    catalog.build(install, target, "json2parquet was not built")
    return target / "bin" / "json2parquet"


def arguments_of(source: Path, target: Path, codec: str) -> list[str]:
    """What follows the command of a program of its own."""
    return ["--compression", codec, str(source), str(target)]


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
