"""OpenTelemetry's spans and log records as events.

    provider.add_span_processor(utracefs.bridges.opentelemetry.SpanProcessor())
    log_provider.add_log_record_processor(utracefs.bridges.opentelemetry.LogRecordProcessor())

    otel_span_begin   u64 span_id; u64 parent_id; span_name; trace_id
    otel_span_end     the same; u64 duration_ns; error; attributes
    otel_log          s32 severity; severity_text; body; event_name; trace_id; u64 span_id; attributes

Exports draw them as slices with the name in `span_name`. Ids are OpenTelemetry's; trace_id is hexadecimal;
attributes are a JSON object of at most 1 KiB; error is the description of a status ERROR, or ERROR. While an
event is off, its processor does nothing. A span that is not recording reaches no processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk import _logs, trace
from opentelemetry.trace import StatusCode

import utracefs
from utracefs.producer._span import BEGIN_FIELDS, END_FIELDS
from utracefs.producer.tracing.texts import json_object, short

if TYPE_CHECKING:
    from opentelemetry.context import Context

__all__ = ["LogRecordProcessor", "SpanProcessor"]

_BODY = 2048

_SPAN = "__rel_loc char[] span_name; __rel_loc char[] trace_id"
_LOG = (
    "s32 severity; __rel_loc char[] severity_text; __rel_loc char[] body; __rel_loc char[] event_name; "
    "__rel_loc char[] trace_id; u64 span_id; __rel_loc char[] attributes"
)


class SpanProcessor(trace.SpanProcessor):  # type: ignore[misc]
    """Emits a record when a span starts and when it ends: events NAME_begin and NAME_end."""

    def __init__(self, name: str = "otel_span") -> None:
        self._begin, self._end = utracefs.events(
            [
                f"{name}_begin {BEGIN_FIELDS}; {_SPAN}",
                f"{name}_end {END_FIELDS}; {_SPAN}; __rel_loc char[] attributes",
            ]
        )

    def on_start(self, span: trace.Span, parent_context: Context | None = None) -> None:
        if self._begin:
            own, parent = span.get_span_context(), span.parent
            if own is not None:
                parent_id = 0 if parent is None else parent.span_id
                self._begin.emit(own.span_id, parent_id, short(span.name), f"{own.trace_id:032x}")

    def on_end(self, span: trace.ReadableSpan) -> None:
        if not self._end:
            return
        own, parent, status = span.get_span_context(), span.parent, span.status
        if own is None:
            return
        error = ""
        if status.status_code is StatusCode.ERROR:
            error = status.description or "ERROR"
        self._end.emit(
            own.span_id,
            0 if parent is None else parent.span_id,
            max((span.end_time or 0) - (span.start_time or 0), 0),
            short(error),
            short(span.name),
            f"{own.trace_id:032x}",
            json_object(span.attributes or {}),
        )

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return utracefs.flush(timeout_millis / 1000)


class LogRecordProcessor(_logs.LogRecordProcessor):  # type: ignore[misc]
    """Emits each log record as a record of the event `name`."""

    def __init__(self, name: str = "otel_log") -> None:
        self._event = utracefs.event(f"{name} {_LOG}")

    def on_emit(self, log_record: _logs.ReadWriteLogRecord) -> None:
        if not self._event:
            return
        record = log_record.log_record
        severity = record.severity_number
        self._event.emit(
            0 if severity is None else severity.value,
            short(record.severity_text),
            short(record.body, _BODY),
            short(record.event_name),
            f"{record.trace_id:032x}" if record.trace_id else "",
            record.span_id or 0,
            json_object(record.attributes or {}),
        )

    def shutdown(self) -> None:
        """Does nothing: there is nothing to close."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return utracefs.flush(timeout_millis / 1000)
