"""Several requests at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fsspec_cas import Store
from fsspec_cas.backends.local import LocalBackend
from lockprovider.table.state.parallel import concurrently


class NotBlocking(LocalBackend):
    blocking = False


@pytest.mark.parametrize("backend", [LocalBackend, NotBlocking])
def test_several_requests_at_a_time_answer_in_their_order(tmp_path: Path, backend: type[LocalBackend]) -> None:
    store = Store(backend(), str(tmp_path))
    assert concurrently(store, []) == []
    assert concurrently(store, [partial(divmod, n, 3) for n in range(20)]) == [divmod(n, 3) for n in range(20)]
