"""The screen, and its keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs.cli.live.top_rates import BOTH, EVENTS, PROCESSES, Count, Rates
from utracefs.cli.live.top_view import HELP, KEYS, View, short
from utracefs.cli.tables import printable

COUNTS = [
    Count("user_events:alpha", 10, 100, 4000, 0, "one"),
    Count("user_events:beta", 10, 300, 1000, 7, "one"),
    Count("user_events:beta", 20, 50, 9000, 0, "two\x1b[2J"),
]


@pytest.fixture
def rates() -> Rates:
    made = Rates(lambda pid: pid != 20)
    made.take(0.0, [])
    made.take(1.0, COUNTS)
    made.take(2.0, [*COUNTS[:2], Count("user_events:beta", 20, 51, 9000, 0, "two\x1b[2J")])
    made.take(3.0, [Count("user_events:alpha", 10, 110, 4400, 0, "one"), *COUNTS[1:]])
    return made


def shown(view: View, rates: Rates, width: int = 80, height: int = 24) -> list[str]:
    lines = view.screen(rates, "ring buffers: idle", width, height)
    assert len(lines) == height and all(len(line.text) <= width for line in lines)
    return [line.text.rstrip() for line in lines]


def order(view: View, rates: Rates) -> list[tuple[str, int]]:
    return [(row.event.partition(":")[2], row.pid) for row in view.rows(rates)]


def test_a_screen(rates: Rates) -> None:
    assert shown(View(), rates)[:6] == [
        "utracefs top - 2 events, 2 processes: 60 records/s, 9400 B/s, 7 lost before",
        "every 2 s; ring buffers: idle",
        "EVENT              PID COMMAND  RECORDS/s*  BYTES/s  LOST/s  RECORDS  LOST",
        "user_events:beta    20 two?[2J          50     9000       0       50     0",
        "user_events:alpha   10 one              10      400       0      110     0",
        "user_events:beta    10 one               0        0       0      300     7",
    ]
    assert shown(View(), rates)[-1] == KEYS
    assert len(KEYS) <= 80 and all(len(line) <= 80 for line in HELP) and len(HELP) <= 21


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("T", [("beta", 10), ("alpha", 10), ("beta", 20)]),
        ("TI", [("beta", 20), ("alpha", 10), ("beta", 10)]),
        ("N", [("alpha", 10), ("beta", 10), ("beta", 20)]),
        ("L", [("beta", 10), ("beta", 20), ("alpha", 10)]),
        ("B", [("beta", 20), ("alpha", 10), ("beta", 10)]),
        ("P", [("alpha", 10), ("beta", 10), ("beta", 20)]),
        ("P>", [("beta", 20), ("alpha", 10), ("beta", 10)]),
        ("N<", [("alpha", 10), ("beta", 10), ("beta", 20)]),
        ("\t", [("beta", 0), ("alpha", 0)]),
        ("vv", [("", 20), ("", 10)]),
        ("/ALP\r", [("alpha", 10)]),
        ("/20\r", [("beta", 20)]),
        ("/alx\x7f", [("alpha", 10)]),
        ("/two\x15one", [("alpha", 10), ("beta", 10)]),
    ],
)
def test_keys(rates: Rates, keys: str, expected: list[tuple[str, int]]) -> None:
    view = View()
    for key in keys:
        view.press(key)
    assert order(view, rates) == expected


def test_more_keys(rates: Rates) -> None:
    view = View()
    for key in ("/", "q", "o", "\r"):
        view.press(key)
    assert (view.filter, view.typing, view.quitting) == ("qo", False, False)
    assert "filter: qo (Esc drops it)" in shown(view, rates)[-1]
    view.press("esc")
    assert view.filter == ""
    view.press("/")
    assert shown(view, rates)[-1] == "filter: _"
    view.press("esc")
    view.press("+")
    view.press("-")
    view.press("-")
    assert view.delay_s == 1.0
    view.press(" ")
    assert view.paused and "PAUSED" in shown(view, rates)[1]
    view.press("h")
    assert HELP[0] in shown(view, rates)
    view.press("q")
    assert not view.quitting and not view.helping
    view.press("q")
    assert view.quitting


def test_many_rows_are_walked_over() -> None:
    made = Rates(lambda _: True)
    made.take(0.0, [Count(f"user_events:e{n:03}", 1, 0, 0, 0, "x") for n in range(100)])
    view = View(by=EVENTS, sort="name")

    def first() -> str:
        return shown(view, made, 80, 14)[3].split()[0][-3:]

    assert first() == "000"
    for key, expected in (("down", "001"), ("pgdn", "011"), ("end", "090"), ("up", "089"), ("home", "000")):
        view.press(key)
        assert first() == expected


def test_only_some_processes(rates: Rates) -> None:
    view = View(pids=frozenset({20}))
    assert order(view, rates) == [("beta", 20)]
    assert order(View(pids=frozenset({20}), by=PROCESSES), rates) == [("", 20)]


@given(
    st.integers(1, 200),
    st.integers(1, 60),
    st.sampled_from([BOTH, EVENTS, PROCESSES]),
    st.lists(st.text(max_size=40), min_size=1, max_size=5),
    st.text(alphabet="\t<>IhPRBLTN/a\r q+-", max_size=12),
)
def test_any_size(width: int, height: int, by: str, names: list[str], keys: str) -> None:
    made = Rates(lambda _: True)
    made.take(0.0, [Count(name, at, 2**64 - 1, 2**64 - 1, 2**63, name) for at, name in enumerate(names)])
    view = View(by=by)
    for key in keys:
        view.press(key)
    for text in shown(view, made, width, height):
        assert text == "" or text.isprintable()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.44, "0.4"), (9.96, "10.0"), (12.7, "13"), (9999, "9999"), (12345, "12.3k"),
     (999_999, "1.0M"), (123_456_789, "123M"), (2**64, "18.4E"), (10**30, "1000000000000E")],
)  # fmt: skip
def test_numbers(number: float, text: str) -> None:
    assert short(number) == text


def test_texts() -> None:
    assert printable("a\tb\udcff\ud800\x1b") == "a?b\ufffd\ufffd?"
