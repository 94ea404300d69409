"""A thread in a workflow of one's own."""
