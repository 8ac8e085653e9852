"""Polars takes over Arrow strings that are not UTF-8, and panics when it uses them. Needs no server.

Arrow leaves it to whoever imports an array to validate what it does not trust:
https://arrow.apache.org/docs/format/CDataInterface.html
"""

import polars as pl
import pyarrow as pa

raw = pa.array([b"\xff\xfeA"], pa.large_binary())
text = pa.Array.from_buffers(pa.large_string(), 1, raw.buffers())  # what decoders do that trust their server
print("expected: an error, or text with U+FFFD in it")
try:
    series = pl.from_arrow(text)
    print(f"seen: {series.to_list()}")
except pl.exceptions.PolarsError as error:
    print(f"seen: {type(error).__name__}: {error}")
except BaseException as panic:  # noqa: BLE001  a panic of Rust is no Exception
    print(f"seen: {type(panic).__name__}: {panic}")
    raise SystemExit(type(panic).__name__ == "PanicException") from None
