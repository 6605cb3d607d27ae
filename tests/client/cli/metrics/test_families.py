"""Metrics as text."""

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from tests.judges import judge
from utracefs.cli.metrics.families import FAMILIES, Metrics, label_of
from utracefs_protocol.text import text_of


def example(label: str = 'quote " backslash \\ newline \n é') -> Metrics:
    metrics = Metrics()
    for number, family in enumerate(FAMILIES.values()):
        metrics.set(family.name, number, *[label for _ in family.labels])
    return metrics


def test_text() -> None:
    metrics = Metrics()
    metrics.set("utracefs_refusals_total", 3, 'a"\\\n')
    metrics.set("utracefs_up", 1)
    assert metrics.text(is_new=False).decode() == (
        "# HELP utracefs_up Whether the daemon answered; without an answer most metrics are missing.\n"
        "# TYPE utracefs_up gauge\n"
        "utracefs_up 1.0\n"
        "# HELP utracefs_refusals_total Requests refused because of a limit.\n"
        "# TYPE utracefs_refusals_total counter\n"
        'utracefs_refusals_total{resource="a\\"\\\\\\n"} 3.0\n'
    )


def test_promtool_finds_nothing_to_say() -> None:
    done = subprocess.run(
        [judge("promtool"), "check", "metrics"],
        input=example().text(is_new=False),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@given(st.binary(), st.binary())
def test_labels_of_any_names(one: bytes, other: bytes) -> None:
    """They print, and are different where the names are."""
    shown = label_of(text_of(one))
    assert shown.isprintable()
    shown.encode()
    assert (shown == label_of(text_of(other))) == (one == other)


def test_labels_that_look_alike() -> None:
    names = [b"a\xff", rb"a\xff", rb"a\udcff", b"a\\", b"a\\\\", b"a\n", rb"a\n", b"a", "aé".encode()]
    assert len({label_of(text_of(name)) for name in names}) == len(names)
    assert label_of("user_events:é") == "user_events:é"
