"""How long an upsert takes, what it writes and leaves, what a reader sees meanwhile, and two of them at once."""

from __future__ import annotations

import collections
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl

from framehaul.bench.passes import right
from framehaul.data.schema import Table
from framehaul.studies.upsert.frames import KEY, TABLE, Case, base, incoming, updated
from framehaul.studies.upsert.places import Bench, Place, upsert
from framehaul.studies.upsert.processes import read_seconds, reading
from framehaul.techniques import Technique

TRIES = 4
"""How often a writer that got an error sends its frame, at most."""


def bench_of(place: Place, case: Case, seed: int) -> tuple[Bench, pl.DataFrame]:
    """The rows of a case that are there, what has to be there afterwards, and the rows that come."""
    there = base(case.target, seed)
    come = incoming(there, case, seed)
    return Bench(place, there, updated(there, come)), come


def timed(bench: Bench, technique: Technique, come: pl.DataFrame) -> dict[str, Any]:
    """One pass: the columns of its row; raises WrongResultError when something else is there afterwards."""
    place, table = bench.place, bench.fresh(technique)
    place.tables(technique).quiesce()
    with place.reader(table, final=technique.final) as read:
        read_before_s = read_seconds(read)
        before = place.counted(table)
        seconds = upsert(technique, place.server, table, come)
        after = place.counted(table)
        read_s = read_seconds(read)
    values = {
        "seconds": seconds, "rows_per_s": len(come) / seconds, "read_before_s": read_before_s, "read_s": read_s,
        **{name: after[name] - before[name] for name in after}, **place.excess(table, len(bench.expected)),
    }  # fmt: skip
    return right(values, bench.difference(technique))


def watched(bench: Bench, technique: Technique, come: pl.DataFrame) -> dict[str, Any]:
    """What another process sees that counts the rows for as long as an upsert runs."""
    place, table = bench.place, bench.fresh(technique)
    old = (len(bench.there), 0)
    new = (len(bench.expected), len(come))
    with reading(place.server, table, final=technique.final) as found:
        seconds = upsert(technique, place.server, table, come)
    (looks,) = found
    seen: collections.Counter[str] = collections.Counter()
    for one, times in looks.found.items():
        seen[_state(one, old, new)] += times
    values = {
        "seconds": seconds, "read_before_s": looks.before_s, "longest_read_s": looks.longest_s, "reads": seen.total(),
        "seen": "; ".join(f"{what} {count}" for what, count in seen.most_common()),
    }  # fmt: skip
    return right(values, bench.difference(technique))


def _state(found: tuple[int, int], old: tuple[int, int], new: tuple[int, int]) -> str:
    """What a reader saw, by the rows that it counted and the sum of their marks, of which new ones have 1."""
    if found in (old, new):
        return "old" if found == old else "new"
    if found[0] < old[0]:
        return "rows missing"
    return "rows twice" if found[0] > new[0] else "a part of the new"


def two_frames(there: pl.DataFrame, case: Case, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Frames of two writers: of each a third is its own, and the rest has the other's keys, in another order."""
    first = incoming(there, case, seed, mark=1)
    known = there.join(first, on=KEY, how="anti")
    case = Case(len(known), case.rows // 3, case.share)
    own = incoming(known, case, seed + 7, mark=2, first=len(there) + len(first))
    shared = first[case.rows :].with_columns(
        pl.lit(2, pl.Int32).alias("mark"), pl.col("label") + " of the second", amount=pl.col("amount") + 1
    )
    return first, pl.concat([own, shared]).reverse()


def together(bench: Bench, technique: Technique, frames: tuple[pl.DataFrame, pl.DataFrame]) -> dict[str, Any]:
    """Two writers at once: what each was told, and what is there when both were told that all is well."""
    place, table = bench.place, bench.fresh(technique)
    errors: collections.Counter[str] = collections.Counter()
    barrier = threading.Barrier(len(frames))

    def write(frame: pl.DataFrame) -> int:
        for retries in range(TRIES):
            try:
                if not retries:
                    barrier.wait()
                upsert(technique, place.server, table, frame)
            except Exception as error:  # noqa: BLE001  whatever a driver raises is what this is about
                errors[f"{type(error).__module__.partition('.')[0].strip('_')}.{type(error).__name__}"] += 1
                last = error
            else:
                return retries
        raise last

    begin = time.perf_counter()
    with ThreadPoolExecutor(len(frames)) as pool:
        retries = sum(pool.map(write, frames))
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds, "retries": retries,
        "errors": ", ".join(f"{name} {count}" for name, count in sorted(errors.items())),
        **outcome(place.tables(technique).content(table), bench.there, frames),
    }  # fmt: skip


def outcome(found: pl.DataFrame, there: pl.DataFrame, frames: tuple[pl.DataFrame, pl.DataFrame]) -> dict[str, int]:
    """Of what two writers left: rows that neither would have left so, keys that are there twice, and the mixture."""
    columns = TABLE.column_names
    first, second = frames
    kept = there.join(pl.concat([first, second]), on=KEY, how="anti")
    both = first.select(KEY).join(second.select(KEY), on=KEY)
    acceptable = pl.concat([kept, first, second])
    as_sent = found.join(acceptable, on=columns, how="semi", nulls_equal=True)
    wanted = acceptable.select(KEY).unique()
    shared = as_sent.join(both, on=KEY, how="semi")
    counts = [int((shared["mark"] == mark).sum()) for mark in (1, 2)]
    return {
        "lost_rows": len(wanted.join(as_sent, on=KEY, how="anti")),
        "doubled_rows": len(found) - found.select(KEY).n_unique(),
        "mixed_rows": min(counts),
    }


def again(bench: Bench, technique: Technique, table: Table, come: pl.DataFrame) -> str:
    """What comes of sending it again: `right`, or what is wrong then."""
    try:
        upsert(technique, bench.place.server, table, come)
    except Exception as error:  # noqa: BLE001  whatever a driver raises is what this is about
        return f"refused: {type(error).__name__}"
    return bench.difference(technique) or "right"
