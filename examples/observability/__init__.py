"""Spans and metrics at an OTLP endpoint."""
