"""The payload codec: compression, and deduplicated offload to the blob store."""

from everlong.codecs.codec import EverlongCodec

__all__ = ["EverlongCodec"]
