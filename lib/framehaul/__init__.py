"""framehaul: how fast, and how faithfully, a dataframe reaches PostgreSQL or ClickHouse and comes back."""

import atexit
import gc

# A process that ends would first walk all that its libraries hold, for half a second, and every notebook and worker
# of ours is waited for: https://docs.python.org/3/library/gc.html#gc.freeze
atexit.register(gc.freeze)
