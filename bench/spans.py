"""Spans off and on, beside what other libraries take for one."""

from __future__ import annotations

import importlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import utracefs
from bench.application import emitting
from bench.measure import Row, daemon, in_turns, left_out, ratio_row, statement_ns, until_off
from utracefs.producer.tracing.spans import declare
from utracefs.tree.tracefs import Tracefs

MANY = 100_000
FEW = 5_000
BURST = 1_000
"""Spans in one timed run: short runs find quiet moments of a busy machine."""


class Discard:
    """A stream of a logger."""

    def msg(self, text: str) -> None:
        """No effect."""

    debug = warning = msg


def others(on: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A description, a statement and its names, for each library that is installed."""
    logger = logging.Logger("bench", logging.DEBUG if on else logging.WARNING)  # noqa: LOG001
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    yield "logging, a line", "logger.debug('order %d', 7)", {"logger": logger}
    with left_out("structlog"):
        structlog = importlib.import_module("structlog")
        level = logging.DEBUG if on else logging.WARNING
        wrapper = structlog.make_filtering_bound_logger(level)
        log = structlog.wrap_logger(Discard(), [structlog.processors.KeyValueRenderer()], wrapper)
        yield "structlog, a line", "log.debug('order', order=7)", {"log": log.bind()}
    with left_out("viztracer"):
        viztracer = importlib.import_module("viztracer")
        tracer = viztracer.VizTracer(verbose=0, log_sparse=True)
        if on:
            tracer.start()
        yield "viztracer's log_event", "with tracer.log_event('order'): pass", {"tracer": tracer}
        tracer.stop()
        tracer.clear()
        sys.setprofile(None)  # where each tracer puts itself: all calls of C functions would take longer
    with left_out("opentelemetry"):
        trace = importlib.import_module("opentelemetry.trace")
        provider: Any = trace.NoOpTracerProvider()
        what = "OpenTelemetry without SDK"
        if on:
            what = "OpenTelemetry's SDK, no exporter"
            provider = importlib.import_module("opentelemetry.sdk.trace").TracerProvider()
        statement = "with span('order', attributes={'order': 7}): pass"
        yield what, statement, {"span": provider.get_tracer("bench").start_as_current_span}


def compared(name: str, own: Callable[[], float], on: bool, at_most: dict[str, float]) -> Iterator[Row]:
    for what, statement, names in others(on):
        found = in_turns({"own": own, "other": lambda: statement_ns(statement, names, FEW)})  # noqa: B023
        yield ratio_row(name, found["own"], found["other"], what, at_most[what.partition(",")[0].split()[0]])


def disabled() -> Iterator[Row]:
    def bare() -> None:
        """No effect."""

    with daemon() as directory, utracefs.Session(directory) as session:
        span = declare(session, "bench_span u64 order", {})
        names: dict[str, Any] = {"span": span, "bare": bare, "event": span.begin}
        call = declare(session, "bench_call", {})
        names["decorated"] = call(bare)
        names["utracefs"] = utracefs
        until_off(span, call)
        best = in_turns(
            {
                one: lambda one=one: statement_ns(one, names, MANY)  # type: ignore[misc]
                for one in ("if event: pass", "with span(7): pass", "bare()", "decorated()")
            }
        )
        own = "with span(7): off"
        yield ratio_row(own, best["with span(7): pass"], best["if event: pass"], "if event:", 15)
        yield ratio_row("a decorated call off", best["decorated()"], best["bare()"], "a bare call", 6)
        limits = {"logging": 2.0, "structlog": 2.0, "viztracer's": 0.2, "OpenTelemetry": 0.2}
        yield from compared(own, lambda: statement_ns("with span(7): pass", names, MANY), False, limits)


def enabled() -> Iterator[Row]:
    with (
        daemon("--buffer-size-kb", "65536") as directory,
        Tracefs(directory) as tree,
        utracefs.Session(directory) as session,
    ):
        span = declare(session, "bench_span u64 order", {})
        event = session.event("bench_one u64 order")
        until_off(span, event)
        tree.write_file("events/user_events/enable", b"1\n")

        def spans() -> float:
            return emitting(directory, tree, session, "with event(7): pass", span, BURST)

        def one() -> float:
            return emitting(directory, tree, session, "event.emit(7)", event, BURST)

        best = in_turns({"span": spans, "one": one}, 60)
        own = "with span(7): on"
        yield ratio_row(own, best["span"], best["one"], "event.emit(7)", 2.5)
        limits = {"logging": 0.5, "structlog": 0.5, "viztracer's": 1.0, "OpenTelemetry's": 0.2}
        yield from compared(own, spans, True, limits)


def rows() -> Iterator[Row]:
    yield from disabled()
    yield from enabled()
