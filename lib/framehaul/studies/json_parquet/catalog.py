"""The converters from JSON lines to Parquet, and the command that runs each of them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from framehaul.data.schema import ColumnType
from framehaul.errors import UnavailableError
from framehaul.settings import Settings
from framehaul.studies.buildings import TABLE
from framehaul.studies.drivers.catalog import Command, build, find_tool, version_output

CODECS = ("snappy", "zstd")
JSON2PARQUET_VERSION = "0.26.1"
"""The version of https://crates.io/crates/json2parquet, built with its published dependencies."""


@dataclass(frozen=True)
class Converter:
    """A converter, its label in tables and charts, and the command that starts its process.

    The arguments of the process are `--compression CODEC SOURCE TARGET`. It prints what the conversion took, as
    `json_lines` does, or nothing: then the whole process is timed.
    """

    name: str
    label: str
    command: Command


def json2parquet(settings: Settings) -> list[str]:
    """Return the command of json2parquet with the types of the table; raises UnavailableError if it is not built."""
    program = json2parquet_program(settings)
    types = {ColumnType.INT32: "Int32", ColumnType.DATE: "Date32", ColumnType.TEXT: "Utf8"}
    usual = {"nullable": True, "dict_id": 0, "dict_is_ordered": False, "metadata": {}}
    fields = [{"name": column.name, "data_type": types[column.type], **usual} for column in TABLE.columns]
    schema = settings.tools_dir / "buildings.json"
    schema.write_text(json.dumps({"fields": fields, "metadata": {}}))  # the format of Rust's Arrow
    return [str(program), "--schema-file", str(schema)]


def json2parquet_program(settings: Settings, *, patient: bool = False) -> Path:
    """Return the path of json2parquet; if it is missing, build it if `patient`, else raise UnavailableError."""
    target = settings.tools_dir
    program = target / "bin" / "json2parquet"
    if version_output(str(program), "--version").split() == ["json2parquet", JSON2PARQUET_VERSION]:
        return program
    if not patient:
        remedy = "make tools builds it, in about 5 minutes, with cargo (https://rustup.rs)"
        raise UnavailableError(f"there is no json2parquet {JSON2PARQUET_VERSION}. {remedy}")
    find_tool("cargo", "Rust: install it (https://rustup.rs)")
    target.mkdir(parents=True, exist_ok=True)
    install = ["cargo", "install", "json2parquet", "--version", JSON2PARQUET_VERSION, "--locked", "--root", str(target)]
    build(install, target, "json2parquet was not built")
    return program


def _python(name: str, label: str) -> Converter:
    # `-m` would import the package with all modules of the study.
    command = [sys.executable, "-P", str(Path(__file__).with_name("json_lines.py")), name]
    return Converter(name, label, lambda _: command)


CONVERTERS = (
    _python("clickhouse", "ClickHouse"),
    _python("pyarrow", "pyarrow"),
    _python("polars", "Polars"),
    _python("duckdb", "DuckDB"),
    _python("fastparquet", "fastparquet, pandas"),
    _python("awkward", "Awkward Array"),
    Converter("json2parquet", "json2parquet, Rust", json2parquet),
)
