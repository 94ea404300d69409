"""`python -m bench.otlp_receiver`: an OTLP receiver in its own process.

It prints its URL, and after SIGTERM the spans and metrics that it has received.
"""

import json
import signal

from tests.support.otlp_receiver import http_receiver

URL = "receives at "
RECEIVED = "received "


def main() -> None:
    """Receive until SIGTERM."""
    with http_receiver() as received:
        print(f"{URL}{received.url}", flush=True)  # noqa: T201 - the parent process reads it.
        signal.sigwait({signal.SIGTERM})
        summary = {"spans": len(received.spans), "metrics": sorted(received.metric_names())}
        print(f"{RECEIVED}{json.dumps(summary)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    # Before other threads start: they inherit the mask, so only sigwait gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
