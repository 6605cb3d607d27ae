"""Histograms of an instance as metrics: read and sent from time to time, in a thread of its own."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from utracefs.cli.instance_option import Place
from utracefs.cli.live.hist_view import EventHistogram, Shown
from utracefs.forward.otlp import OtlpTarget
from utracefs.forward.otlp_metrics import Counted
from utracefs.forward.policy import Policy
from utracefs.forward.target import TryAgain
from utracefs.recordings.origin import Origin
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.text import text_of

_ANSWER_S: Final = 10.0


@attrs.define(eq=False)
class _Histograms:
    _target: OtlpTarget
    _place: Place
    _directory: str | None
    _policy: Policy
    _host: str
    _begun: dict[tuple[EventName, str], tuple[int, int]] = attrs.field(factory=dict)
    """Event and trigger to the start of its counts, and the last number of hits."""
    _read_ns: int = 0
    """Time of the last reading; 0 until one was sent."""

    def send(self) -> str:
        """Returns a description of the data points that the collector refused. OSError, TryAgain."""
        found: list[Counted] = []
        begun: dict[tuple[EventName, str], tuple[int, int]] = {}
        with Tracefs(self._directory, timeout_s=_ANSWER_S) as tree:
            shown = Shown(tree, self._place, "*:*").read()
            if self._policy.is_limited:
                triggers: dict[EventName, list[str]] = {}
                for one in shown:
                    triggers.setdefault(one.event, []).append(one.histogram.trigger)
                genuine = {event for event, texts in triggers.items() if self._is_genuine(tree, event, texts)}
                shown = [one for one in shown if one.event in genuine]
            now_ns = time.time_ns()
            # When the first ones began to count is unknown. The data model of OpenTelemetry has points
            # without duration for that, so that no consumer counts them again.
            before_ns = self._read_ns or now_ns
            for one in shown:
                if not self._may_leave(tree, one):
                    continue
                key = one.event, one.histogram.trigger
                start_ns, hits = self._begun.get(key, (before_ns, 0))
                if one.histogram.hits < hits:  # cleared, or made anew
                    start_ns = max(before_ns, start_ns + 1)
                begun[key] = start_ns, one.histogram.hits
                name = one.event.name
                found.append(Counted(one.event.system, name, one.histogram, start_ns, one.signed))
        if self._read_ns:
            self._begun, self._read_ns = begun, now_ns
        refused = self._target.send_metrics(self._host, Origin.here("mono").boot_id, found, now_ns)
        self._begun, self._read_ns = begun, now_ns
        return refused

    def _may_leave(self, tree: Tracefs, one: EventHistogram) -> bool:
        """Whether the policy lets its counts leave; False, too, if the event is gone."""
        if not self._policy.allows(one.event):
            return False
        try:
            format = parse_format(tree.read_file(f"{one.event.directory}/format"))
        except (FileNotFoundError, TraceError):
            return False
        is_allowed = self._policy.verdict(one.event, format) not in (False, None)
        return is_allowed and self._policy.allows_histogram(format, one.histogram.trigger)

    def _is_genuine(self, tree: Tracefs, event: EventName, triggers: list[str]) -> bool:
        """A value may look like the head of another histogram, and what follows then like its entries."""
        try:
            text = text_of(tree.read_file(self._place.path(f"{event.directory}/trigger")))
        except FileNotFoundError:
            return False
        lines = [line for line in text.split("\n") if line.startswith("hist:")]
        return triggers == [line.rpartition(" [")[0] for line in lines]


@contextlib.contextmanager
def sending_histograms(
    target: OtlpTarget,
    place: Place,
    *,
    directory: str | None,
    policy: Policy,
    host: str,
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Send histograms at once, every `target.metrics_s` seconds, and at the end. target: used by this thread
    alone; the caller closes it."""
    histograms = _Histograms(target, place, directory, policy, host)
    end = threading.Event()
    reported = ""

    def step() -> None:
        nonlocal reported
        try:
            refused = histograms.send()
            text = f"histograms are refused: {refused}" if refused else ""
        except FileNotFoundError:
            return  # no daemon, or no such instance yet
        except Exception as error:  # noqa: BLE001 (no histogram, and no secret, ends the thread)
            is_known = isinstance(error, TryAgain | OSError)
            text = f"histograms are not sent: {error if is_known else repr(error)}"
        if text and text != reported:
            tell(text)
        reported = text

    def run() -> None:
        step()
        while not end.wait(target.metrics_s):
            step()
        step()

    thread = threading.Thread(target=run, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(_ANSWER_S)
