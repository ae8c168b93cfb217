"""What an object is made with besides its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Attributes:
    """Content type, user metadata, and what else the store's own API takes by name (`own`).

    They belong to one write: the next write of the object replaces them all. `own` may hold what is for nobody else's
    eyes, so it is not shown.
    """

    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    own: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
