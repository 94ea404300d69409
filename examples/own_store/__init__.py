"""A blob store of one's own."""
