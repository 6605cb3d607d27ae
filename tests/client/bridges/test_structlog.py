"""Events of the real structlog."""

import json
from pathlib import Path

from tests.client.requests_of import recorded
from tests.judges import library

library("structlog")

PROGRAM = """
import structlog, utracefs
from utracefs.bridges.structlog import Processor

structlog.configure(processors=[
    structlog.contextvars.merge_contextvars, Processor(fields=["request_id", "user"]),
    structlog.processors.JSONRenderer(),
])
log = structlog.get_logger().bind(user="jo")
with utracefs.context(request_id="a1", tenant=5):
    log.info("hello", n=1)
log.error("e" * 5000, what=object)
"""


def test_events(tmp_path: Path) -> None:
    hello, error = [r.fields for r in recorded(tmp_path, PROGRAM) if r.name == "structlog"]
    assert json.loads(hello.pop("values")) == {"tenant": 5, "n": 1}
    assert hello == {"level": "info", "message": "hello", "request_id": "a1", "user": "jo"}
    assert (error["level"], len(error["message"]), error["request_id"]) == ("error", 1536, "")
