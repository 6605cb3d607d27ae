"""Losses in words, and the losses that a file reports."""

from utracefs.cli.losses import LOSSES, lost_in_file, lost_lines, lost_text, refused_text


def test_what_is_written_is_what_is_read() -> None:
    lost = {loss.name: number for number, loss in enumerate(LOSSES)}
    assert lost_in_file(["CPU: 0\nentries: 7\n", lost_lines(lost).decode()]) == lost
    assert lost_in_file(["CPU: 0\nentries: 7\n"]) == {}


def test_in_words() -> None:
    assert lost_text({}) == lost_text({"no_room": 0}) == "nothing lost"
    assert lost_text({"dropped": 1, "no_room": 2}) == (
        "3 lost: 1 dropped by the full buffer (-b KB), 2 without room on the disk"
    )


def test_refused_in_words() -> None:
    assert refused_text({}) == ""
    assert refused_text({"a.n was float": 3}) == ", 3 refused: a.n was float"
    many = {f"a.n{number} was None": number for number in range(1, 6)}
    assert refused_text(many) == (
        ", 15 refused: 5 a.n5 was None, 4 a.n4 was None, 3 a.n3 was None and 2 other reasons"
    )
