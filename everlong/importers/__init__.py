"""Importers: recorded sessions of other agents, as messages of this project."""

from everlong.importers.formats import FORMATS, find_transcripts, read_transcripts
from everlong.importers.transcript import RecordedSummary, Transcript

__all__ = [
    "FORMATS",
    "RecordedSummary",
    "Transcript",
    "find_transcripts",
    "read_transcripts",
]
