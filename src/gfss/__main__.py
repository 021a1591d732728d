"""``gfss`` and ``python -m gfss``."""

import os
import signal
import sys
from typing import NoReturn


def run() -> int:
    """Run the command; Ctrl-C while its packages are being imported ends it without a traceback."""
    usual = signal.signal(signal.SIGINT, _stop)
    from gfss.cli import main

    signal.signal(signal.SIGINT, usual)
    return main()


def _stop(*_: object) -> NoReturn:
    os.write(2, b"gfss: interrupted; the same command starts again\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(run())
