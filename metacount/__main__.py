"""`python -m metacount`: the same as the `metacount` command."""

import sys

from metacount.cli import main

if __name__ == "__main__":
    sys.exit(main())
