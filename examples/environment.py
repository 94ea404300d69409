"""Where the examples run: on the server and the store of the environment, or of `everlong dev`."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from temporalio.envconfig import ClientConfig, ClientConnectConfig


def run(main: Callable[[ClientConnectConfig, str], Coroutine[Any, Any, object]]) -> None:
    """Call `main` with the arguments of `Client.connect` and the URL of the store."""
    config = ClientConfig.load_client_connect_config()  # TEMPORAL_ADDRESS, profiles, TLS, API key.
    config.setdefault("target_host", "localhost:7233")
    store = os.environ.get("EVERLONG_STORE") or Path(".everlong/dev/blobs").absolute().as_uri()
    try:
        asyncio.run(main(config, store))
    except RuntimeError as error:
        if "Failed client connect" not in str(error):
            raise
        sys.exit(f"No Temporal server answers at {config['target_host']}. Start one: everlong dev")
