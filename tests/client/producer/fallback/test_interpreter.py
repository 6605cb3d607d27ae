"""The one compiled module that every interpreter may import."""

from utracefs.producer.fallback._interpreter import is_main


def test_the_main_one() -> None:
    assert is_main()
