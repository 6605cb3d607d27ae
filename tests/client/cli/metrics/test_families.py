"""Metrics as text."""

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from tests.judges import judge
from utracefs.cli.metrics.families import FAMILIES, PROMETHEUS, Metrics, label_of
from utracefs_protocol.text import text_of


def example(label: str = 'quote " backslash \\ newline \n é') -> Metrics:
    metrics = Metrics()
    for number, family in enumerate(FAMILIES.values()):
        metrics.set(family.name, number, *[label for _ in family.labels])
    return metrics


def test_openmetrics() -> None:
    metrics = Metrics()
    metrics.set("utracefs_refusals_total", 3, 'a"\\\n')
    metrics.set("utracefs_up", 1)
    assert metrics.text().decode() == (
        "# TYPE utracefs_up gauge\n"
        "# HELP utracefs_up Whether the daemon answered; without an answer most metrics are missing.\n"
        "utracefs_up 1\n"
        "# TYPE utracefs_refusals counter\n"
        "# HELP utracefs_refusals Requests refused because of a limit.\n"
        'utracefs_refusals_total{resource="a\\"\\\\\\n"} 3\n'
        "# EOF\n"
    )


def test_the_older_format() -> None:
    metrics = Metrics()
    metrics.set("utracefs_events_summed", 0)
    metrics.set("utracefs_refusals_total", 3, "x")
    assert metrics.text(PROMETHEUS).decode() == (
        "# TYPE utracefs_events_summed gauge\n"
        '# HELP utracefs_events_summed Events without series of their own, in event="other".\n'
        "utracefs_events_summed 0\n"
        "# TYPE utracefs_refusals_total counter\n"
        "# HELP utracefs_refusals_total Requests refused because of a limit.\n"
        'utracefs_refusals_total{resource="x"} 3\n'
    )


def test_promtool_finds_nothing_to_say() -> None:
    done = subprocess.run(
        [judge("promtool"), "check", "metrics"],
        input=example().text(PROMETHEUS),
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
