"""Fakes, servers and agents that the tests share; nothing here is a test."""
