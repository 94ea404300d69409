"""The payload codec."""

from everlong.codecs.codec import EverlongCodec

__all__ = ["EverlongCodec"]
