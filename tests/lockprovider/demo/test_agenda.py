"""What is left to do, from the history alone."""

from __future__ import annotations

from lockprovider.demo import flights
from lockprovider.demo.flights import Done, plan

PLAN = plan((1, 2))  # main-1 main-2 late-1 late-2


def arrived(*names: str) -> list[Done]:
    return [Done("ingest", int(name[-1]), f"{at:03}", name) for at, name in enumerate(names, start=1)]


def test_what_a_commit_says_about_itself_is_read_back():
    extra = flights.words("protect", 7, covers="123")
    assert flights.done("456", extra) == Done("protect", 7, "456", "", "123")


def test_a_commit_of_somebody_else_is_passed_over():
    assert flights.done("456", {"schema": "{}"}) is None


def test_ingest_goes_on_where_the_history_ends():
    assert [d.name for d in flights.to_deliver(arrived("main-1", "main-2"), PLAN)] == ["late-1", "late-2"]


def test_a_delivered_month_is_to_be_protected_and_a_protected_one_is_not():
    history = arrived("main-1", "main-2")
    assert flights.to_protect(history) == (1, 2)
    assert flights.to_protect([*history, Done("protect", 1, "003", covers="001")]) == (2,)


def test_a_delivery_that_a_protecting_commit_did_not_see_makes_the_month_raw_again():
    # late-1 completed at 003, before the protecting commit at 004, which had seen only main-1.
    history = [*arrived("main-1", "main-2", "late-1"), Done("protect", 1, "004", covers="001")]
    assert flights.to_protect(history) == (2, 1)
    assert flights.protected_deliveries(history) == 1


def test_a_month_is_corrected_once_and_only_when_its_deliveries_are_complete():
    assert flights.to_backfill(arrived("main-1", "main-2"), PLAN) == ()
    whole = arrived("main-1", "main-2", "late-1", "late-2")
    assert flights.to_backfill(whole, PLAN) == (1, 2)
    assert flights.to_backfill([*whole, Done("backfill", 1, "009")], PLAN) == (2,)
