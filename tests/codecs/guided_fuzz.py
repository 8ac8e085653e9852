"""Damaged streams chosen by which branches of the decoders they reach: Atheris, on the loops as plain Python.

    NUMBA_DISABLE_JIT=1 uv run --with atheris python -m tests.codecs.guided_fuzz native CORPUS -max_total_time=600

with `native` or `copy`, and a directory that keeps what reached something new. Any error but ValueError ends it.
https://github.com/google/atheris
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=[
        "framehaul.data.text",
        "framehaul.codecs.compiled",
        "framehaul.codecs.native_format",
        "framehaul.codecs.copy_binary",
    ]
):
    from framehaul.codecs import native_format
    from framehaul.codecs.copy_binary import CopyDecoder

from tests.codecs.damaged_streams import EVERY_TYPE, MORE_TYPES, NARROW, content
from tests.codecs.test_copy_binary import encoded
from tests.codecs.test_native_format import block

TABLES = (EVERY_TYPE, MORE_TYPES, NARROW)


def decode_native(data: bytes) -> None:
    """The first byte chooses the table."""
    native_format.SCRATCH_BYTES = 1 << 10
    native_format.read_native(io.BytesIO(data[1:]), TABLES[data[0] % 3]).validate(full=True)


def decode_copy(data: bytes) -> None:
    """The first byte chooses the table, and where the stream is cut in two."""
    decoder = CopyDecoder((EVERY_TYPE, NARROW)[data[0] % 2])
    decoder.feed(data[1 : data[0]])
    decoder.feed(data[max(1, data[0]) :])
    decoder.finish().validate(full=True)


def refused_or_decoded(data: bytes) -> None:
    """What Atheris calls."""
    try:
        (decode_native if sys.argv[1] == "native" else decode_copy)(data or b"\0")
    except ValueError:
        return


if __name__ == "__main__":
    corpus = Path(sys.argv[2])
    corpus.mkdir(exist_ok=True)
    for at, table in enumerate(TABLES if sys.argv[1] == "native" else (EVERY_TYPE, NARROW)):
        whole = content(table, 5, 1)
        stream = block(table, whole) if sys.argv[1] == "native" else encoded(table, whole)
        (corpus / f"whole-{at}").write_bytes(bytes([at]) + stream)
    atheris.Setup([sys.argv[0], str(corpus), *sys.argv[3:]], refused_or_decoded)
    atheris.Fuzz()
