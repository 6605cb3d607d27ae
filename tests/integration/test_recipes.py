"""The recipes of docs/spans.md, with the real libraries."""

import re
from pathlib import Path

import pytest

from tests.client.requests_of import recorded
from tests.judges import library

PAGE = Path(__file__).parents[2] / "docs" / "spans.md"

QUERIES = """
from sqlalchemy import create_engine, text

with utracefs.span("job"), create_engine("sqlite://").connect() as connection:
    connection.execute(text("select 1"))
    try:
        connection.execute(text("select wrong"))
    except Exception:
        pass
assert utracefs.current_span() is None
"""

TASKS = """
from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("test", broker="memory://", backend="cache+memory://")

@app.task(name="add")
def add(a, b):
    return a + b

@app.task(name="fail")
def fail():
    raise KeyError

with start_worker(app, pool="solo", perform_ping_check=False, loglevel="critical"), utracefs.span("job"):
    assert add.delay(1, 2).get(timeout=60) == 3
    try:
        fail.delay().get(timeout=60)
    except KeyError:
        pass
"""


@pytest.mark.parametrize(
    ("package", "name", "program", "span", "wanted"),
    [
        (
            "sqlalchemy",
            "sql_spans",
            QUERIES,
            "sql_query",
            [("select 1", ""), ("select wrong", "OperationalError")],
        ),
        ("celery", "celery_spans", TASKS, "celery_task", [("add", ""), ("fail", "KeyError")]),
    ],
)
def test_recipe(
    tmp_path: Path, package: str, name: str, program: str, span: str, wanted: list[tuple[str, str]]
) -> None:
    library(package)
    found = re.search(rf"```python\n# {name}\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    records = recorded(tmp_path, found[1] + program, "-W", "ignore")
    (job,) = [r.fields for r in records if r.name == "job_begin"]
    ends = [r.fields for r in records if r.name == f"{span}_end"]
    assert [(e.get("statement", e.get("task")), e["error"]) for e in ends] == wanted
    assert {e["parent_id"] for e in ends} == {job["span_id"]}
