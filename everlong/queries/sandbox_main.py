"""Entry point of the sandbox process. It is run as a file, with `python -I`.

The process imports only `sandbox` and its dependencies: the `__init__` of the everlong package imports
the Temporal SDK, which takes longer than most statements.
"""

import sys
import types
from pathlib import Path


def main() -> None:
    """Make packages that have modules and no `__init__`, and run `sandbox.main`."""
    here = Path(__file__).resolve().parent
    for name, folder in (("everlong", here.parent), ("everlong.queries", here)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    from everlong.queries import sandbox

    sandbox.main()


if __name__ == "__main__":
    main()
