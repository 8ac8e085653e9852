"""Which documents ClickHouse's own type `JSON` keeps: those that are taken come back, whatever stands beside them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from framehaul.data.documents import check_native_document
from framehaul.data.equality import content_of, first_difference
from framehaul.data.schema import NATIVE_JSON, Column, ColumnType, Table
from framehaul.servers import ServerError, Servers
from framehaul.servers.tables import ClickHouseTables

KEYS = ["a", "b", "", "a b", "a`b", 'a"b', "a\\b", "é", "0", "[]", "size0", "k" * 200]
TEXTS = [
    "", "x", "é👩‍👩‍👧", "1", "1.5", "true", "null", "NaN", "[1]", '{"a":1}', 'x\t"\n\\', "\u2028", "1e5", "10:00:00",
    "127.0.0.1", "2026-01-02", "2149-06-06", "1970-01-01", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5+02:00",
    "2026-01", "1767225600", "2026-01-02 ", "20260102", "2026-01-02 03:04:05", "2026-02-30", "2200-01-01", "2026-1-2",
    "12345678", "0001-01-01",
]  # fmt: skip
NUMBERS = [
    0, -1, 255, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 2**64, 0.5, 1.0, 1e20, 1e22, 1e300,
    5e-324, 0.1, 1 / 3,
]  # fmt: skip


def a_value(random: random.Random, depth: int = 0) -> Any:
    """Any value, lists of one kind as often as mixed ones."""
    makers: list[Callable[[], Any]] = [
        lambda: None, lambda: random.random() < 0.5, lambda: random.choice(NUMBERS), lambda: random.choice(TEXTS),
        lambda: random.uniform(-1, 1) * 10 ** random.randrange(-300, 300),
    ]  # fmt: skip
    if depth < 4:
        makers += [
            lambda: [a_value(random, depth + 1) for _ in range(random.randrange(4))],
            lambda: an_object(random, depth + 1),
        ]
    if depth < 4 and random.random() < 0.2:
        one = random.choice(makers)
        return [one() for _ in range(random.randrange(4))]
    return random.choice(makers)()


def an_object(random: random.Random, depth: int = 0) -> dict[str, Any]:
    return {random.choice(KEYS[: random.choice([2, 12])]): a_value(random, depth) for _ in range(random.randrange(4))}


def is_taken(document: str) -> bool:
    try:
        check_native_document(document)
    except ValueError:
        return False
    return True


def came_back(documents: list[str | None], servers: Servers) -> str:
    """What differs of documents that went into one block, and were merged with others; empty where nothing does."""
    columns = (Column("id", ColumnType.INT32), Column("v", ColumnType.JSON, nullable=True, exactly=NATIVE_JSON))
    table, tables = Table("framehaul_documents", columns, ("id",)), ClickHouseTables(servers.clickhouse)
    sent = pa.table({"id": pa.array(range(len(documents)), pa.int32()), "v": documents}, schema=table.arrow_schema)
    tables.create(table)
    try:
        tables.load(table, sent)
        tables.load(table, sent.slice(0, 0))
        tables.run(f"OPTIMIZE TABLE {table.clickhouse_name} FINAL")
        found = tables.content(table).sort("id")
    finally:
        tables.drop(table)
    pairs = (content_of(each, columns, nan_is_null=False) for each in (sent, found))
    return str(first_difference(*pairs) or "")


@pytest.mark.parametrize("seed", range(4))
def test_documents_that_are_taken_come_back_whatever_is_beside_them(seed: int, servers: Servers) -> None:
    source = random.Random(seed)
    documents = [json.dumps(an_object(source), ensure_ascii=source.random() < 0.5) for _ in range(4_000)]
    taken = [document for document in documents if is_taken(document)]
    assert len(taken) > 1_000
    assert came_back([*taken, None], servers) == ""


def test_documents_may_be_deep_and_wide(servers: Servers) -> None:
    wide = [json.dumps({f"k{at}": at for at in range(first, 3_000)}) for first in (0, 1_500)]
    deep = [f"{'[' * 60}1{']' * 60}", '{"a":' * 60 + "1" + "}" * 60, '[{"a":' * 30 + "1" + "}]" * 30]
    documents = [*wide, *(f'{{"a":{each}}}' for each in deep), json.dumps({"a": "é" * 1_000_000}), "{}", None]
    assert all(document is None or is_taken(document) for document in documents)
    assert came_back(documents, servers) == ""


CHANGED: dict[str, tuple[str, list[str]]] = {
    "null": ("the key 'b' is null", ['{"a": 1, "b": null}']),
    "null in an object of a list": ("the key 'b' is null", ['{"a": [{"b": null}]}']),
    "an empty object": ("the key 'a' is {}", ['{"a": {}}']),
    "a dot": ("the key 'a.b' has a dot", ['{"a.b": 1}']),
    "null among lists": ("the list [[1], null]", ['{"a": [[1], null]}']),
    "null alone, behind lists": ("the list [null]", ['{"a": [[1]]}', '{"a": [null]}']),
    "null beside an object, behind objects": ("[null, {", ['{"a": [{"b": 1}]}', '{"a": [null, {"b": 1}]}']),
    "booleans and numbers": ("of booleans and others", ['{"a": [true, 1]}']),
    "booleans and numbers in lists": ("of booleans and others", ['{"a": [[true], [1]]}']),
    "a list past 2^53, behind floats": ("2^53 is the most", ['{"a": [0.5]}', '{"a": [9007199254740993]}']),
    "past 64 bits": ("whole numbers of 64 bits", ['{"a": 18446744073709551616}']),
    "a long negative one": ("whole numbers of 64 bits", ['{"a": -9223372036854775809}']),
    "more digits than a float": ("it holds 0.12345678901234567891", ['{"a": 0.12345678901234567891}']),
    "a moment": ("'2026-01-02T03:04:05'", ['{"a": "2026-01-02T03:04:05"}']),
    "a moment with a fraction": ("'2026-01-02 03:04:05.5'", ['{"a": ["2026-01-02 03:04:05.5"]}']),
    "a day that Date lacks": ("'2149-06-07'", ['{"a": "2149-06-07"}']),
    "a day of slashes": ("'2026/01/02'", ['{"a": "2026/01/02"}']),
    "eight digits, behind a day": ("'12345678'", ['{"a": "2026-01-02"}', '{"a": "12345678"}']),
    "a list": ("it is no object", ["[1]"]),
    "null itself": ("it is no object", ["null"]),
    "more than a float": ("floats of 64 bits", ['{"a": 1e400}']),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_refused_the_server_does_change(name: str, servers: Servers) -> None:
    said, documents = CHANGED[name]
    with pytest.raises(ValueError, match=re.escape(said)):
        for document in documents:
            check_native_document(document)
    try:
        assert came_back([*documents], servers)
    except ServerError as refused:
        assert "JSON object" in str(refused)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "Expecting value"), ("{", "Expecting property name"), ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1, "a": 2}', "one is there twice"), ('{"a": "2026-01-02 03:04:05"}', "moment or a day"),
        ('{"a%2Eb": 1}', "has a dot"), ("[" * 100_000, "nested too deeply"),
        (f'{{"a": {"9" * 10_000}}}', "whole numbers of 64 bits"),
    ],
)  # fmt: skip
def test_what_is_no_document_or_depends_on_the_session_is_refused(document: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        check_native_document(document)
    assert len(str(caught.value)) < 200


def test_days_text_and_numbers_of_their_size_are_taken() -> None:
    for document in ('{"at": "2026-01-02T03:04:05Z", "day": "2026-01-02"}', '{"a": [1, "x", null, 0.5]}', "{}",
                     '{"a": [{}], "b": [], "c": 18446744073709551615}', '{"": {"": ""}}'):  # fmt: skip
        check_native_document(document)


def test_a_frame_without_rows_has_its_column() -> None:
    table = Table("t", (Column("v", ColumnType.JSON, exactly=NATIVE_JSON),), ())
    assert table.polars_schema == {"v": pl.String()}
    assert "`v` JSON" in table.clickhouse_ddl
    assert '"v" jsonb' in table.postgres_ddl
