"""pandas 3.1.1: Arrow-backed integers beside NULL lose digits on the way to the nullable dtype Int64."""

import sys

import pandas as pd
import pyarrow as pa

SENT = [1, None, -33_448_745_904_706_042]

backed = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(SENT, pa.int64())])))
seen = backed.astype("Int64").tolist()
print(f"expected: {SENT[2]}")
print(f"seen: {seen[2]}")
sys.exit(seen[2] != SENT[2])
