"""Tool calls that wait for a person."""
