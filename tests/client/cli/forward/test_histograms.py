"""Histograms of a daemon, sent to a collector."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.otlp_server import Collector, attributes, collecting
from utracefs import Session
from utracefs.cli.forward.histograms import _Histograms, sending_histograms
from utracefs.cli.instance_option import TOP
from utracefs.forward.otlp import OtlpTarget
from utracefs.forward.policy import Policy
from utracefs.forward.target import Settings, TryAgain

WAIT_S = 30


def metrics(collector: Collector, at: int = -1) -> dict[str, Any]:
    """Name to data points, of one request; empty without a request."""
    found: dict[str, Any] = {}
    told = [one[2] for one in collector.requests if one[0] == "/v1/metrics"]
    for resource in told[at].resource_metrics if told else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = list(metric.sum.data_points or metric.histogram.data_points)
    return found


def hits(collector: Collector) -> list[int]:
    return [one.as_int for one in metrics(collector).get("work.hitcount", ())]


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_histogram(traced: Cli, tmp_path: Path, is_hidden: bool) -> None:
    collector = Collector()
    policy = tmp_path / "policy.toml"
    hidden = '[fields."*"]\nusec = "redact"\n' if is_hidden else ""
    policy.write_text('events = ["user_events:work"]\n' + hidden)
    with Session(traced.env["UTRACEFS_DIR"]) as session, collecting(collector) as port:
        work, other = session.event("work u32 status; u32 usec"), session.event("other u32 status")
        wait_for(lambda: other.registered, WAIT_S)
        path = "events/user_events/work/trigger"
        for file, text in ((path, "hist:keys=status"), (path, "hist:keys=usec.log2:vals=usec")):
            traced.run("write", "--append", file, text)
        traced.run("write", "--append", "events/user_events/other/trigger", "hist:keys=status")
        words = ["forward", f"otlp://127.0.0.1:{port}", "-O", "metrics=1", "-e", "none"]
        words += ["--policy", str(policy), "--spool", str(tmp_path / "spool")]
        before_ns = time.time_ns()
        forwarder = traced.start(*words)
        try:
            wait_for(lambda: work and other, WAIT_S)
            for usec in (1, 5, 8):
                work.emit(200, usec)
                other.emit(1)
            assert session.flush(60)
            wait_for(lambda: hits(collector) == [3], WAIT_S)
            first = metrics(collector)
            traced.run("write", "--append", path, "hist:keys=status:clear")
            work.emit(500, 1)
            assert session.flush(60)
        finally:
            forwarder.send_signal(signal.SIGTERM)
            _, told = forwarder.communicate(timeout=WAIT_S)
        assert forwarder.returncode == 0, told
    last = metrics(collector)
    assert ("work.usec" in first) == (not is_hidden)
    assert not any(name.startswith("other") for name in (*first, *last))
    (begun,), (again,) = first["work.hitcount"], last["work.hitcount"]
    assert attributes(begun)["status"] == 200
    assert (again.as_int, attributes(again)["status"]) == (1, 500)
    assert before_ns < begun.start_time_unix_nano <= begun.time_unix_nano <= again.start_time_unix_nano
    if not is_hidden:
        (usec,) = last["work.usec"]
        assert list(usec.explicit_bounds) == [1, 2, 4, 8] and list(usec.bucket_counts) == [2, 0, 0, 2, 0]
        assert (usec.count, usec.sum) == (4, 15)


@contextlib.contextmanager
def sending(port: int, directory: str, policy: Policy) -> Iterator[_Histograms]:
    with contextlib.closing(OtlpTarget(f"otlp://127.0.0.1:{port}", Settings())) as target:
        yield _Histograms(target, TOP, directory, policy, "web1")


def test_a_second_forwarder_counts_nothing_again(traced: Cli) -> None:
    """The first reading is a point without duration, until one has arrived."""
    collector = Collector()
    directory = traced.env["UTRACEFS_DIR"]
    with Session(directory) as session, collecting(collector) as port:
        work = session.event("work u32 status")
        wait_for(lambda: work.registered, WAIT_S)
        traced.run("write", "--append", "events/user_events/work/trigger", "hist:keys=status")
        wait_for(lambda: work, WAIT_S)
        work.emit(200)
        assert session.flush(60)
        for _ in range(2):
            with sending(port, directory, Policy()) as histograms:
                collector.answer = lambda _path, _message: (503, {}, b"")
                with pytest.raises(TryAgain):
                    histograms.send()
                collector.answer = lambda _path, _message: None
                assert histograms.send() == ""
                (first,) = metrics(collector)["work.hitcount"]
                assert first.start_time_unix_nano == first.time_unix_nano
                assert histograms.send() == ""
                (second,) = metrics(collector)["work.hitcount"]
                assert first.start_time_unix_nano == second.start_time_unix_nano < second.time_unix_nano


@pytest.mark.parametrize("is_away", [False, True])
def test_cleared_histograms_begin_anew(traced: Cli, is_away: bool) -> None:
    """Also right behind the first reading, and while the collector is away."""
    collector = Collector()
    directory = traced.env["UTRACEFS_DIR"]
    path = "events/user_events/work/trigger"
    with (
        Session(directory) as session,
        collecting(collector) as port,
        sending(port, directory, Policy()) as histograms,
    ):
        work = session.event("work u32 status")
        wait_for(lambda: work.registered, WAIT_S)
        traced.run("write", "--append", path, "hist:keys=status")
        wait_for(lambda: work, WAIT_S)

        def emit(count: int) -> None:
            for _ in range(count):
                work.emit(200)
            assert session.flush(20)

        emit(5)
        histograms.send()
        (before,) = metrics(collector)["work.hitcount"]
        traced.run("write", "--append", path, "hist:keys=status:clear")
        emit(2)
        if is_away:
            collector.answer = lambda _path, _message: (503, {}, b"")
            with pytest.raises(TryAgain):
                histograms.send()
            collector.answer = lambda _path, _message: None
            emit(8)
        histograms.send()
        (after,) = metrics(collector)["work.hitcount"]
        assert (before.as_int, after.as_int) == (5, 10 if is_away else 2)
        assert before.time_unix_nano < after.start_time_unix_nano < after.time_unix_nano


def test_variables_of_other_triggers_under_a_policy(traced: Cli) -> None:
    """They may have a field that is hidden, or of an event that does not leave."""
    collector = Collector()
    directory = traced.env["UTRACEFS_DIR"]
    with Session(directory) as session, collecting(collector) as port:
        session.event("login u32 id; u32 card")
        work = session.event("work u32 id")
        wait_for(lambda: work.registered, WAIT_S)
        for event, text in (
            ("login", "hist:keys=id:x=card"),
            ("work", "hist:keys=id:vals=$x"),
            ("work", "hist:keys=id:y=id:onmax($y).save(id)"),
        ):
            traced.run("write", "--append", f"events/user_events/{event}/trigger", text)
        for policy, seen in (
            (Policy(), 3),
            (Policy(fields={"login": {"card": "redact"}}), 1),
            (Policy(events=("user_events:work",)), 1),
        ):
            with sending(port, directory, policy) as histograms:
                assert histograms.send() == ""
            texts = str(collector.requests[-1][2])
            assert texts.count("utracefs.trigger") == seen
            assert ("$x" in texts) == (seen == 3)


def test_no_forbidden_value_leaves(traced: Cli) -> None:
    """By no trigger that the daemon accepts."""
    collector = Collector()
    directory = traced.env["UTRACEFS_DIR"]
    forged = "\n# event histogram\n#\n# trigger info: hist:keys=id:vals=hitcount [active]\n#\n\n{ id: "
    with Session(directory) as session, collecting(collector) as port:
        login = session.event("login u32 id; u32 card; __rel_loc char[] user")
        okay = session.event("okay u32 id; u32 card")
        wait_for(lambda: okay.registered, WAIT_S)
        traced.run("write", "--append", "synthetic_events", "leak u32 v")
        for event, text in (
            ("user_events/login", "hist:keys=user"),
            ("user_events/login", "hist:name=shared:keys=id:vals=card"),
            ("user_events/login", "hist:keys=id:x=card"),
            ("user_events/login", "hist:keys=id:w=card"),
            ("user_events/okay", "hist:keys=id"),
            ("user_events/okay", "hist:keys=id.hex:vals=user_events.login.$x"),
            ("user_events/okay", "hist:keys=id.log2:vals=$w"),
            ("user_events/okay", "hist:keys=id.buckets=7:y=$x:onmax($y).save(id)"),
            ("user_events/okay", "hist:keys=id:onmatch(user_events.login).trace(leak,$w)"),
            ("user_events/okay", "hist:keys=card"),
            ("user_events/okay", "hist:keys=card.hex:vals=card"),
            ("user_events/okay", "hist:keys=card.log2"),
            ("user_events/okay", "hist:keys=card.buckets=7"),
            ("user_events/okay", "hist:keys=id:z=card:onmax($z).save(card)"),
            ("user_events/okay", "hist:keys=common_pid if card == 77777001"),
            ("synthetic/leak", "hist:keys=v"),
        ):
            traced.run("write", "--append", f"events/{event}/trigger", text)
        wait_for(lambda: login and okay, WAIT_S)
        for user in ("alicesecret", forged, "zoesecret"):
            login.emit(5, 77777001, user)
            okay.emit(5, 77777001)
        assert session.flush(60)
        hiding = Policy(fields={"login": {"user": "redact"}, "*": {"card": "hash"}})
        for policy in (hiding, Policy(events=("user_events:okay",), fields={"okay": {"card": "hash"}})):
            with sending(port, directory, policy) as histograms:
                assert histograms.send() == ""
            (point,) = metrics(collector)["okay.hitcount"]
            assert (point.as_int, attributes(point)["id"]) == (3, 5)
            sent = collector.requests[-1][2].SerializeToString()
            values = [
                one.as_int
                for points in metrics(collector).values()
                for one in points
                if hasattr(one, "as_int")
            ]
            assert not any(value % 77777001 == 0 for value in values if value)
            for value in (b"secret", b"77777001", b"4a2c869", b"login", b"leak", b"card", b"2^27"):
                assert value not in sent


def test_refused_requests_and_errors_do_not_end_it() -> None:
    told: list[str] = []
    answers: Iterator[ValueError | str] = iter([ValueError("mine"), "400", ""])
    rounds = threading.Event()

    def send(self: _Histograms) -> str:
        answer = next(answers, None)
        if answer is None:
            rounds.set()
            return ""
        if isinstance(answer, str):
            return answer
        raise answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Histograms, "send", send)
        target = OtlpTarget("otlp://127.0.0.1:1", Settings())
        with sending_histograms(target, TOP, directory=None, policy=Policy(), host="h", tell=told.append):
            assert rounds.wait(WAIT_S)
    assert told == ["histograms are not sent: ValueError('mine')", "histograms are refused: 400"]
