"""Hooks into the SDK: what each activation does, and the spans that come of it."""
