"""Entry point of `python -m fsspec_cas`."""

import sys

from fsspec_cas.cli import main

if __name__ == "__main__":
    sys.exit(main())
