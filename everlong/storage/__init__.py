"""Where bytes live: blob stores, the object format inside them, and the journal on top."""

from everlong.storage.base import BlobInfo, BlobStore
from everlong.storage.urls import open_store

__all__ = ["BlobInfo", "BlobStore", "open_store"]
