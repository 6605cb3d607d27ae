"""Spans and log records of the real SDK."""

from pathlib import Path

from tests.client.requests_of import recorded
from tests.judges import library

library("opentelemetry.sdk")

PROGRAM = """
import utracefs
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry._logs import LogRecord, SeverityNumber
from utracefs.bridges.opentelemetry import LogRecordProcessor, SpanProcessor

provider = TracerProvider()
provider.add_span_processor(SpanProcessor())
tracer = provider.get_tracer("test")
logs = LoggerProvider()
logs.add_log_record_processor(LogRecordProcessor())
logger = logs.get_logger("test")

with tracer.start_as_current_span("outer", attributes={"n": 1, "t": (1, 2)}):
    try:
        with tracer.start_as_current_span("inner \\udc80" + "x" * 1000):
            logger.emit(LogRecord(body={"a": 1}, severity_number=SeverityNumber.WARN, severity_text="WARN",
                                  attributes={"k": "v"}, event_name="thing"))
            raise KeyError("text")
    except KeyError:
        pass
logger.emit(LogRecord())
assert provider.force_flush() and logs.force_flush()
provider.shutdown()
logs.shutdown()
"""


def test_spans_and_log_records(tmp_path: Path) -> None:
    records = recorded(tmp_path, PROGRAM)
    named = {
        name: [r.fields for r in records if r.name == name]
        for name in ("otel_span_begin", "otel_span_end", "otel_log")
    }
    outer, inner = named["otel_span_begin"]
    ended_inner, ended_outer = named["otel_span_end"]
    assert (outer["parent_id"], inner["parent_id"]) == (0, outer["span_id"])
    assert outer["trace_id"] == inner["trace_id"] and len(outer["trace_id"]) == 32
    assert (ended_outer["span_id"], ended_outer["error"], ended_outer["span_name"]) == (
        outer["span_id"],
        "",
        "outer",
    )
    assert ended_outer["attributes"] == '{"n": 1, "t": [1, 2]}'
    assert ended_inner["error"] == "KeyError: 'text'"
    assert ended_inner["span_name"].startswith("inner \\udc80x") and len(ended_inner["span_name"]) == 512
    assert 0 < ended_inner["duration_ns"] < ended_outer["duration_ns"]
    log, empty = named["otel_log"]
    assert log == {
        "severity": 13,
        "severity_text": "WARN",
        "body": "{'a': 1}",
        "event_name": "thing",
        "trace_id": outer["trace_id"],
        "span_id": inner["span_id"],
        "attributes": '{"k": "v"}',
    }
    assert empty["body"] == empty["trace_id"] == "" and empty["span_id"] == 0
