"""What a document of JSON must not hold where PostgreSQL's jsonb is to keep it as it is.

https://www.postgresql.org/docs/18/datatype-json.html
"""

from __future__ import annotations

import json
import re

ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of U+0000, which is not itself escaped."""


def check_document(text: str) -> None:
    """Raises ValueError for what is no JSON, and for what jsonb refuses or changes: equal keys, U+0000, half a pair."""
    try:
        value = json.loads(text, object_pairs_hook=each_key_once, parse_int=str, parse_constant=no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply to be read") from error
    if "\\u" in text:  # else nothing stands in it that JSON has to escape
        written = json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
        if ESCAPED_NUL.search(written):
            raise ValueError("it holds \\u0000: take it out")


def each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these pairs; raises ValueError for a key that is there twice, of which jsonb keeps the last."""
    each = dict(pairs)
    if len(each) < len(pairs):
        raise ValueError(f"of the keys {', '.join(key for key, _ in pairs)} one is there twice: drop one")
    return each


def no_number(text: str) -> None:
    """Raises ValueError for NaN and the infinities, which Python would take."""
    raise ValueError(f"{text} is no JSON: write null")
