"""`python -m bench.otlp_receiver`: a receiver of OTLP in a process of its own.

It tells where it listens, and once it is stopped, how much has arrived.
"""

import json
import signal

from tests.support.otlp_receiver import http_receiver

URL = "receives at "
RECEIVED = "received "


def main() -> None:
    """Receive until told to stop."""
    with http_receiver() as received:
        print(f"{URL}{received.url}", flush=True)  # noqa: T201 - whoever started it reads this.
        signal.sigwait({signal.SIGTERM})
        told = {"spans": len(received.spans), "metrics": sorted(received.metric_names())}
        print(f"{RECEIVED}{json.dumps(told)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    # Before there are threads, so that none of them gets it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
