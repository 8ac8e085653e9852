"""Own data: your own frame moved by every technique, and the code of the fastest exact ones."""

from framehaul.studies.own_data.study import PATH, open_frame, recommended, run, write_code

__all__ = ["PATH", "open_frame", "recommended", "run", "write_code"]
