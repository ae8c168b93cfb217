"""`python -m fsspec_cas`: as the command `fsspec-cas`."""

import sys

from fsspec_cas.cli import main

if __name__ == "__main__":
    sys.exit(main())
