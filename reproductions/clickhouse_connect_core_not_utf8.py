"""The Rust decoder of clickhouse-connect-core gives Arrow strings that are not UTF-8. Needs no server."""

import pyarrow as pa
from _ch_core import StreamDecoder

# A block of FORMAT Native: one column, one row; its name, its type, its value, each behind its length.
block = b"\x01\x01" + b"\x05value" + b"\x06String" + b"\x03\xff\xfeA"
decoder = StreamDecoder()
(found,) = [pa.table(part) for part in [*decoder.feed(block), *decoder.finish()]]
print("expected: an error, or a column of binary")
try:
    found.validate(full=True)
except pa.ArrowInvalid as error:
    print(f"seen: a column of {found['value'].type}: {error}")
    raise SystemExit(1) from None
print(f"seen: a column of {found['value'].type}, which is valid")
