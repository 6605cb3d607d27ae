"""The counts of docs/testing.md are those of the sources."""

from tests.counts import PAGE, counts, is_current


def test_the_page_is_up_to_date() -> None:
    assert is_current(PAGE, counts()), "`python -m tests.counts` writes the table"
