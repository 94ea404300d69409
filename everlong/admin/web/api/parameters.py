"""What requests name beside threads: entries and archives. All of it is checked before it is used."""

from typing import Annotated, Final

from fastapi import Path, Query

SEQ_MAX: Final = 10_000_000
ARCHIVE_ID: Final = r"^([0-9]{8}T[0-9]{9}Z-[0-9a-f]{8})?$"
Seq = Annotated[int, Path(ge=1, le=SEQ_MAX, description="An entry's place in the journal.")]
SeqQuery = Annotated[int, Query(ge=1, le=SEQ_MAX)]
OptionalSeq = Annotated[int | None, Query(ge=1, le=SEQ_MAX)]
