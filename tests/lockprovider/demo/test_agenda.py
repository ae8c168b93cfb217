"""What is left to do, from the history alone."""

from __future__ import annotations

from lockprovider.demo.run import Done, to_backfill, to_protect


def arrived(*names: str) -> list[Done]:
    split = [name.split("-") for name in names]
    return [Done("ingest", int(month), kind, f"{at:03}") for at, (kind, month) in enumerate(split, start=1)]


def test_delivered_month_is_to_be_protected_and_a_protected_one_is_not():
    history = arrived("main-1", "main-2")
    assert to_protect(history) == [1, 2]
    assert to_protect([*history, Done("protect", 1, "001", "003")]) == [2]


def test_delivery_unseen_by_a_protecting_commit_makes_the_month_raw():
    # late-1 completed at 003, before the protecting commit at 004, which had seen only main-1.
    history = [*arrived("main-1", "main-2", "late-1"), Done("protect", 1, "001", "004")]
    assert to_protect(history) == [2, 1]


def test_month_is_corrected_once_and_only_after_all_its_deliveries():
    assert to_backfill(arrived("main-1", "main-2")) == []
    whole = arrived("main-1", "main-2", "late-1", "late-2")
    assert to_backfill(whole) == [1, 2]
    assert to_backfill([*whole, Done("backfill", 1, "", "009")]) == [2]
