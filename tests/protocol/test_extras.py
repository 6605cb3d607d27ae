"""The line that names the extra of a missing package; and pyproject.toml has them all."""

import re
import tomllib
from pathlib import Path

from utracefs_protocol.extras import how_to_install

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def missing(name: str | None) -> ModuleNotFoundError:
    return ModuleNotFoundError("no", name=name)


def test_the_extra_that_has_a_package() -> None:
    assert how_to_install(missing("click.core")) == "click is not installed: pip install 'utracefs[tools]'"
    assert how_to_install(missing("trio")) == "trio is not installed: pip install 'utracefs[daemon]'"
    assert how_to_install(missing("click"), "daemon") == (
        "click is not installed: pip install 'utracefs[daemon]'"
    )
    assert "build Python again" in (how_to_install(missing("_sqlite3")) or "")
    assert how_to_install(missing("utracefs.nothing")) is how_to_install(missing(None)) is None


def test_the_project_has_these_extras() -> None:
    for extra, packages in PROJECT["optional-dependencies"].items():
        for package in packages:
            name = re.split(r"[<>=]", package)[0].replace("-", "_")
            if extra in ("tools", "daemon") and not name.startswith("utracefs"):
                assert f"utracefs[{extra}]" in (how_to_install(missing(name.partition("[")[0])) or "")
