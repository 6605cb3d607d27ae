"""The pages of reference are those of the sources, and a letter means one thing in all commands."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from utracefs.cli import cli

DOCS = Path(__file__).parents[1] / "docs"


def reference() -> Any:
    """docs/sphinx/reference.py."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "sphinx" / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["command-line.md", "python-api.md"])
def test_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == reference().page(name), "`make reference` writes it"


def test_a_letter_means_one_thing() -> None:
    letters = reference().letters()
    assert {letter: options for letter, options in letters.items() if len(options) > 1} == {}
    page = (DOCS / "command-line.md").read_text()
    for letter, options in letters.items():
        assert f"| `{letter}` | `{next(iter(options))}` |" in page


def test_commands_in_the_order_of_the_help() -> None:
    page = (DOCS / "command-line.md").read_text()
    names = cli.list_commands(cli.make_context("utracefs", [], resilient_parsing=True))
    places = [page.index(f"\n## utracefs {name}\n") for name in names]
    assert places == sorted(places) and len(names) > 20
