"""Group commit: one write is under way, and what arrives meanwhile goes out with the next one.

`line.py` decides what goes when, and what has to wait for a number that failed (pure); `batcher.py` has the thread that
writes. It imports `fsspec_cas` and the recipes' errors.
"""

from lockprovider.recipes.batching.batcher import Batcher
from lockprovider.recipes.batching.line import Numbers

__all__ = ["Batcher", "Numbers"]
