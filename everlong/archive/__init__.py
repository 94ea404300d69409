"""Archives: a thread's whole journal as one Parquet file that any tool can read."""

from everlong.archive.manifest import Facts, Freed, Manifest, make_archive_id
from everlong.archive.reader import ArchivedJournal, StoredArchive
from everlong.archive.writer import Progress

__all__ = [
    "ArchivedJournal",
    "Facts",
    "Freed",
    "Manifest",
    "Progress",
    "StoredArchive",
    "make_archive_id",
]
