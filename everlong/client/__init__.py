"""Everlong's API for programs: threads, what is asked of them, and lists of them.

`everlong.thread(client, "ops-7")` returns a handle of one thread, as the SDK has handles of workflows.
"""
