"""Storage options, looked at before a client is made of them: fsspec passes on, or ignores, what it does not know."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from fsspec_cas.errors import InvalidInput

# What is taken from `**kwargs`, by fsspec or by botocore's session.
_UNNAMED = frozenset(
    {"asynchronous", "loop", "batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time"}
    | {"max_paths", "profile", "session_vars", "event_hooks", "include_builtin_handlers"}
)


def check_options(kind: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that this kind of filesystem does not have, and an endpoint without a scheme.

    Raises:
        InvalidInput: naming the option; never its value, which may be a secret, but for an endpoint's.
    """
    known = _known(kind)
    for name in options:
        if name not in known:
            from difflib import get_close_matches  # noqa: PLC0415 - only for a message

            alike = get_close_matches(str(name), sorted(known), n=1)
            hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(sorted(known))}"
            raise InvalidInput(f"storage option {name!r} is none of {kind.__name__}: {hint}")
    client = options.get("client_kwargs")
    for place in (options, client if isinstance(client, Mapping) else {}):
        endpoint = place.get("endpoint_url")
        if isinstance(endpoint, str) and endpoint and "://" not in endpoint:
            raise InvalidInput(f"endpoint_url={endpoint!r} has no scheme: write https://{endpoint}, or http:// for one")


def merged_options(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Options that were given in two places, called `names`.

    Raises:
        InvalidInput: the two places contradict each other.
    """
    for name in first.keys() & second.keys():
        if first[name] != second[name]:
            raise InvalidInput(f"storage option {name!r} differs between {names[0]} and {names[1]}: give it once")
    return {**first, **second}


@cache
def _known(kind: Any) -> frozenset[str]:
    named: set[str] = set()
    for one in kind.__mro__:
        if "__init__" in vars(one):
            parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
            named |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return frozenset((named - {"self"}) | _UNNAMED)
