"""Network effects: techniques over networks with delay, with compression, with TLS, and through PgBouncer."""

from framehaul.studies.network.catalog import with_codec
from framehaul.studies.network.study import run

__all__ = ["run", "with_codec"]
