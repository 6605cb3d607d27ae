"""Histograms of an instance as metrics: read and sent from time to time, in a thread of its own."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from utracefs.cli.instance_option import Place
from utracefs.cli.live.hist_view import EventHistogram, Shown
from utracefs.fleet.trigger import has_word
from utracefs.forward.otlp import OtlpTarget
from utracefs.forward.otlp_metrics import Counted
from utracefs.forward.policy import Policy
from utracefs.forward.target import Refused, TryAgain
from utracefs.recordings.origin import Origin
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import FieldKind
from utracefs_protocol.events.event_format import EventFormat, parse_format
from utracefs_protocol.text import text_of

__all__ = ["sending_histograms"]

_ANSWER_S: Final = 10.0


class _Histograms:
    def __init__(
        self, target: OtlpTarget, place: Place, directory: str | None, policy: Policy, host: str
    ) -> None:
        self._target: Final = target
        self._place: Final = place
        self._directory: Final = directory
        self._policy: Final = policy
        self._host: Final = host
        self._begun: dict[tuple[EventName, str], tuple[int, int]] = {}
        """Event and trigger to the start of its counts, and the last number of hits."""
        self._read_ns = time.time_ns()

    def send(self) -> None:
        """OSError; TryAgain, Refused."""
        found: list[Counted] = []
        begun: dict[tuple[EventName, str], tuple[int, int]] = {}
        before_ns = self._read_ns
        with Tracefs(self._directory, timeout_s=_ANSWER_S) as tree:
            for one in Shown(tree, self._place, "*:*").read():
                format = self._format(tree, one)
                if format is None:
                    continue
                key = one.event, one.histogram.trigger
                start_ns, hits = self._begun.get(key, (before_ns, 0))
                if one.histogram.hits < hits:  # cleared, or made anew
                    start_ns = before_ns
                begun[key] = start_ns, one.histogram.hits
                signed = {
                    text_of(field.name)
                    for field in format.fields
                    if field.kind is FieldKind.INTEGER and field.signed
                }
                found.append(Counted(one.event.name, one.histogram, start_ns, frozenset(signed)))
        self._begun = begun
        self._read_ns = time.time_ns()
        self._target.send_metrics(self._host, Origin.here("mono").boot_id, found, self._read_ns)

    def _format(self, tree: Tracefs, one: EventHistogram) -> EventFormat | None:
        """None: the policy does not let its counts leave, or the event is gone."""
        if not self._policy.allows(one.event):
            return None
        if any(has_word(one.histogram.trigger, name) for name in self._policy.hidden):
            return None
        try:
            format = parse_format(tree.read_file(f"{one.event.directory}/format"))
        except (FileNotFoundError, TraceError):
            return None
        return None if self._policy.verdict(one.event, format) in (False, None) else format


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
    """Each `target.metrics_s` seconds, and once more at the end. target: the caller's, for this alone."""
    histograms = _Histograms(target, place, directory, policy, host)
    end = threading.Event()
    told = ""

    def step() -> None:
        nonlocal told
        try:
            histograms.send()
        except (TryAgain, Refused, OSError) as error:
            text = f"histograms are not sent: {error}"
            if isinstance(error, FileNotFoundError):
                return  # no daemon, or no such instance yet
        else:
            text = ""
        if text and text != told:
            tell(text)
        told = text

    def run() -> None:
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
