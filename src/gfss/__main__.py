"""``python -m gfss`` is the same as ``gfss``."""

import sys

from gfss.cli import main

if __name__ == "__main__":
    sys.exit(main())
