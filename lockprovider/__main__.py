"""Entry point of `python -m lockprovider`."""

import sys

from lockprovider.cli import main

if __name__ == "__main__":
    sys.exit(main())
