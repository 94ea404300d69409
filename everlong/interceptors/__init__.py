"""Interceptors and activation hooks: Everlong's code around the SDK's workflow tasks and calls."""
