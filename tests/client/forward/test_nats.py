"""The target `nats` with a real nats-server: restarts, lost answers, full streams, limits, logins, TLS."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.kit import EVENT, batch
from tests.client.nats.certificates import certificates
from tests.client.nats.server import WAIT_S, NatsServer, serving
from tests.client.nats.test_connection import fake
from tests.integration.pages import blocks
from tests.judges import library
from utracefs.forward.batch import Batch
from utracefs.forward.losses import Loss
from utracefs.forward.nats import NatsTarget
from utracefs.forward.nats_messages import Arrived, Reader
from utracefs.forward.target import Settings, TryAgain, open_target
from utracefs.nats.connection import Connection, Server
from utracefs.nats.errors import ApiError, WireError
from utracefs.nats.jetstream import JetStream
from utracefs.nats.login import Login
from utracefs.recordings.origin import Origin

library("pyarrow")

LIMITS = {"max_bytes": "100M", "max_age": "7d"}


@contextlib.contextmanager
def target(
    at: Server, options: dict[str, str] = LIMITS, *, timeout_s: float = WAIT_S, **settings: Any
) -> Iterator[NatsTarget]:
    made = open_target(f"nats://{at}/RECORDS", Settings(options, timeout_s, **settings))
    assert isinstance(made, NatsTarget)
    try:
        yield made
    finally:
        made.close()


def batches(*sizes: int, first: int = 1, forwarder: str = "f1") -> list[Batch]:
    """Batches of that many records; the values of `a` say which batch it is."""
    return [
        attrs.evolve(
            batch([sequence * 100_000 + n for n in range(size)]), forwarder=forwarder, sequence=sequence
        )
        for sequence, size in enumerate(sizes, first)
    ]


def arrived(server: NatsServer) -> list[Arrived]:
    with server.connection() as connection, Reader(JetStream(connection), "RECORDS") as reader:
        found = []
        while reader.pending:
            one = reader.next(WAIT_S)
            assert one is not None
            found.append(one)
        assert not reader.invalid
    return found


def values(found: Sequence[Arrived]) -> list[int]:
    return [
        value
        for one in found
        for table in one.tables.get(EVENT, ())
        for value in table.column("a").to_pylist()
    ]


def expected(sent: Sequence[Batch]) -> list[int]:
    return [record.fields["a"] for one in sent for record in one]


# Delivery


def test_records_arrive(server: NatsServer) -> None:
    losses = [Loss(EVENT, "ring", 5), Loss("*", "away", None)]
    one, two = batches(3, 2)
    with target(server.at) as nats:
        assert nats.send([attrs.evolve(one, losses=losses), two]) == {}
    first, second = arrived(server)
    assert (first.host, first.forwarder) == ("here", "f1")
    at = first.position
    assert (at.boot_id, at.sequence) == ("boot", 1)
    assert (at.begin, at.end, at.all) == (0, 3, 3)
    assert first.clock == one.clock and first.clock.uncertainty_ns == 3
    assert first.counts == {EVENT: 3} and list(first.losses) == losses
    assert (second.position.sequence, second.previous, second.losses) == (2, 1, ())
    assert values([first, second]) == expected([one, two])
    assert first.tables[EVENT][0].schema.metadata[b"utracefs.host"] == b"here"


def test_the_stream_that_is_made(server: NatsServer) -> None:
    with target(server.at) as nats:
        nats.send(batches(1))
    with server.connection() as connection:
        config = JetStream(connection).stream("RECORDS")["config"]
    assert config["subjects"] == ["utracefs.records.>"]
    assert (config["max_bytes"], config["max_age"], config["discard"]) == (
        100 << 20,
        7 * 86400 * 10**9,
        "old",
    )


def test_a_stream_is_not_made_without_limits(server: NatsServer) -> None:
    with target(server.at, {}) as nats:
        with pytest.raises(TryAgain, match="there is no stream RECORDS: create it with"):
            nats.send(batches(1))
        with server.connection() as connection:
            jetstream = JetStream(connection)
            jetstream.create_stream({"name": "RECORDS", "subjects": ["other"]})
            with pytest.raises(TryAgain, match=r"no stream has the subjects utracefs\.records\.>"):
                nats.send(batches(1))
            jetstream.call("STREAM.UPDATE.RECORDS", {"name": "RECORDS", "subjects": ["utracefs.records.>"]})
        nats.send(batches(1))
    assert len(arrived(server)) == 1


def test_a_stream_of_an_operator_stays_unchanged(server: NatsServer) -> None:
    with server.connection() as connection:
        jetstream = JetStream(connection)
        jetstream.create_stream({"name": "RECORDS", "subjects": ["utracefs.>"], "max_bytes": 1 << 20})
        with target(server.at) as nats:
            nats.send(batches(1))
        assert jetstream.stream("RECORDS")["config"]["max_bytes"] == 1 << 20


def test_a_host_that_changes_its_name(server: NatsServer) -> None:
    one, two, three, four = batches(2, 3, 4, 5)
    sent = [one, attrs.evolve(two, host="b.c"), three, attrs.evolve(four, host="b.c")]
    with target(server.at) as nats:
        nats.send(sent)
        nats.send(sent)
    found = arrived(server)
    assert [one.host for one in found] == ["here", "b.c", "here", "b.c"]
    assert [one.previous for one in found] == [0, 1, 2, 3]
    assert values(found) == expected(sent)


# Repeated batches


def test_what_was_stored_is_not_stored_again(server: NatsServer) -> None:
    sent = batches(*[2] * 5)
    with target(server.at) as nats:
        nats.send(sent[:3])
    with target(server.at) as nats:  # it was killed before it knew that
        nats.send(sent[:2])
        nats.send(sent[2:])
        nats.send(sent)
    assert values(arrived(server)) == expected(sent)


def test_an_answer_lost_for_longer_than_any_window(server: NatsServer) -> None:
    """The stream forgets ids of messages after 100 ms; a message of another forwarder makes sure of that."""
    sent = batches(2, 3)
    with server.connection() as connection:
        jetstream = JetStream(connection)
        jetstream.create_stream(
            {"name": "RECORDS", "subjects": ["utracefs.records.>"], "duplicate_window": 10**8}
        )
        with target(server.at) as nats:
            nats.send(sent)
        ids = 0
        window = {"Nats-Msg-Id": "x"}
        while jetstream.publish("utracefs.records.o", b"", window) and ids < 2:  # until the window is over
            ids = jetstream.stream("RECORDS")["state"]["messages"] - 2
        jetstream.call("STREAM.PURGE.RECORDS", {"filter": "utracefs.records.o"})
        with target(server.at) as nats:
            nats.send(sent)
    assert values(arrived(server)) == expected(sent)


def test_killed_in_the_middle(server: NatsServer) -> None:
    """At any moment: the batch is stored, or it is not."""
    sent = batches(*[300] * 300)
    half = threading.Event()

    def kill() -> None:
        half.wait(WAIT_S)
        server.kill()
        server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    with target(server.at) as nats:
        for number, one in enumerate(sent):
            if number == 20:
                half.set()
            while True:
                try:
                    nats.send([one])
                except (OSError, TryAgain):
                    continue
                break
    killer.join()
    assert [one.position.sequence for one in arrived(server)] == list(range(1, 301))


@pytest.mark.parametrize(
    ("stored", "clocks", "boot"),
    [
        (2, (31, 32, 33), "boot"),  # an older copy that was put back
        (2, (9,), "boot"),  # the same batch number, of another copy
        (2, (1,), "second"),
        (9, (31,), Origin.here("mono").boot_id),
    ],
)
def test_a_copy_of_the_spool(server: NatsServer, stored: int, clocks: Sequence[int], boot: str) -> None:
    """It has the id of the original: its batches are no repeated ones."""

    def made(sequence: int, clock_ns: int, boot: str = "boot") -> Batch:
        (one,) = batches(1, first=sequence)
        return attrs.evolve(one, boot_id=boot, clock=attrs.evolve(one.clock, clock_ns=clock_ns))

    first = [made(n, 10 + n) for n in range(1, stored + 1)]
    again = [made(n, clock_ns, boot) for n, clock_ns in enumerate(clocks, 2)]
    with target(server.at) as nats:
        nats.send(first)
    with target(server.at) as nats:
        nats.send(first[1:])
        for _ in range(2):
            with pytest.raises(TryAgain, match="another copy of this spool"):
                nats.send(again)
    assert values(arrived(server)) == expected(first)


def test_a_server_that_hangs(server: NatsServer, tmp_path: Path) -> None:
    """Its connection may last for ever: the next server is tried."""
    with serving(tmp_path / "second") as second:
        with server.connection() as first, second.connection() as other:
            wait_for(lambda: all(map(is_ready, (first, other))), WAIT_S)
        made = open_target(f"nats://{server.at},{second.at}/RECORDS", Settings(LIMITS, 1))
        made.send(batches(2))
        server.pause()
        try:
            with pytest.raises(TimeoutError):
                for number in itertools.count(2):  # the signal takes a moment
                    made.send(batches(2, first=number))
            made.send(batches(2, first=number))
        finally:
            server.resume()
            made.close()
        assert values(arrived(second)) == expected(batches(2, first=number))


def is_ready(connection: Connection) -> bool:
    """JetStream may begin after the server."""
    with contextlib.suppress(ApiError):
        return bool(JetStream(connection).call("INFO"))
    return False


@pytest.mark.parametrize(
    "answer",
    [
        b'{"config": []}',
        b'{"config": null}',
        b"{}",
        b'{"error": {"code": 1e999}}',
        b'{"config": {}, "message": {"subject": "a", "seq": 1e999}}',
    ],
)
def test_records_wait_for_a_server_that_answers_nonsense(answer: bytes) -> None:
    """Another error would be a refusal, which loses them."""

    def talk(sock: socket.socket) -> None:
        sock.sendall(b'INFO {"max_payload": 1000000, "headers": true}\r\n')
        file = sock.makefile("rb")
        for line in file:
            words = line.split()
            if words[0] == b"PING":
                sock.sendall(b"PONG\r\n")
            elif words[0] in (b"PUB", b"HPUB"):
                file.read(int(words[-1]) + 2)
                sock.sendall(b"MSG %s 1 %d\r\n%s\r\n" % (words[2], len(answer), answer))

    with fake(talk) as at, target(at) as nats, pytest.raises(WireError):
        nats.send(batches(1))


def test_a_server_that_lost_its_store(server: NatsServer) -> None:
    sent = batches(2, 2, 2, 2)
    with target(server.at) as nats:
        nats.send(sent[:2])
        server.kill()
        server.empty()
        server.start()
        nats.send(sent[2:3])
        nats.send(sent[3:])
    found = arrived(server)
    assert [(one.position.sequence, one.previous) for one in found] == [(3, 2), (4, 3)]


def test_a_server_that_lost_the_last_messages(server: NatsServer) -> None:
    sent = batches(2, 2, 2, 2)
    with target(server.at) as nats, server.connection() as connection:
        jetstream = JetStream(connection)
        nats.send(sent[:3])
        for sequence in (2, 3):
            jetstream.call("STREAM.MSG.DELETE.RECORDS", {"seq": sequence})
        nats.send(sent[3:])
        with Reader(jetstream, "RECORDS") as reader:
            assert [one and one.position.sequence for one in (reader.next(WAIT_S), reader.next(WAIT_S))] == [
                1,
                4,
            ]
            assert reader.vanished == {"here": 1}


# Limits


def test_a_full_stream(server: NatsServer) -> None:
    with server.connection() as connection:
        jetstream = JetStream(connection)
        config = {
            "name": "RECORDS",
            "subjects": ["utracefs.records.>"],
            "discard": "new",
            "max_bytes": 20_000,
        }
        jetstream.create_stream(config)
        sent = batches(*[10] * 20)
        with target(server.at) as nats:
            done = 0
            with pytest.raises(TryAgain, match="stream RECORDS: maximum bytes exceeded"):
                for one in sent:
                    nats.send([one])
                    done += 1
            assert done
            with pytest.raises(TryAgain, match="maximum bytes"):
                nats.send(sent[done:])
            jetstream.call("STREAM.UPDATE.RECORDS", {**config, "max_bytes": 1 << 20})
            nats.send(sent[done:])
    assert values(arrived(server)) == expected(sent)


def test_a_large_batch_is_several_messages(tmp_path: Path) -> None:
    losses = [Loss(EVENT, "ring", 5)]
    sent = [attrs.evolve(one, losses=losses) for one in batches(10, 5000, 10)]
    with serving(tmp_path / "nats", "max_payload: 20000") as server:
        with target(server.at, {**LIMITS, "compression": "none"}) as nats:
            assert nats.send(sent) == {}
            nats.send(sent)
        found = arrived(server)
    assert len(found) > 6
    assert values(found) == expected(sent)
    assert sum(one.counts.get(EVENT, 0) for one in found) == 5020
    assert sum(loss.count or 0 for one in found for loss in one.losses) == 15
    parts = [one.position for one in found if one.position.sequence == 2]
    assert parts[0].begin == 0 and parts[-1].end == parts[0].all == 5000
    assert all(one.end == two.begin for one, two in itertools.pairwise(parts))


class Killed(BaseException):
    pass


@contextlib.contextmanager
def killed_after(messages: int) -> Iterator[None]:
    """The server has that many messages when the forwarder is killed."""
    begin, numbers = JetStream.begin, itertools.count()

    def counted(jetstream: JetStream, *words: Any, **options: Any) -> Any:
        if next(numbers) == messages:
            raise Killed
        return begin(jetstream, *words, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JetStream, "begin", counted)
        yield


def test_max_msg_size_that_an_operator_changes(server: NatsServer) -> None:
    first, second = batches(5, 5000)
    with target(server.at, {**LIMITS, "compression": "none"}) as nats, server.connection() as connection:
        nats.send([first])
        jetstream = JetStream(connection)
        config = {**jetstream.stream("RECORDS")["config"], "max_msg_size": 20_000}
        jetstream.call("STREAM.UPDATE.RECORDS", config)
        with pytest.raises(TryAgain, match="message size"):
            nats.send([second])
        nats.send([second])
    assert values(arrived(server)) == expected([first, second])


def test_many_losses_are_several_messages(tmp_path: Path) -> None:
    """The first half is stored when the next forwarder begins."""
    losses = [Loss(f"user_events:{n:064x}", "ring", 10**9 + n) for n in range(5000)]
    one, two = batches(3, 2)
    one = attrs.evolve(one, losses=losses)
    with serving(tmp_path / "nats", "max_payload: 30000") as server:
        with target(server.at) as nats, killed_after(3), pytest.raises(Killed):
            nats.send([one])
        with target(server.at) as nats:
            nats.send([one, two])
            nats.send([one, two])
        found = arrived(server)
    assert len(found) > 4
    assert [loss for message in found for loss in message.losses] == losses
    assert values(found) == expected([one, two])
    assert found[-1].previous == 1


def test_too_small_a_server(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "nats", "max_payload: 1000") as server,
        target(server.at) as nats,
        pytest.raises(TryAgain, match="takes messages of 1000 bytes"),
    ):
        nats.send(batches(1))


def test_records_that_cannot_be_decoded(server: NatsServer) -> None:
    losses = [Loss(EVENT, "ring", 5)]
    one, broken, three = (attrs.evolve(one, losses=losses) for one in batches(2, 3, 4))
    broken = attrs.evolve(broken, body=broken.body[:-7])
    with target(server.at) as nats:
        assert nats.send([one, broken, three]) == {EVENT: 3}
        assert nats.send([one, broken, three]) == {EVENT: 3}
    found = arrived(server)
    assert sum(one.counts.get(EVENT, 0) for one in found) == 6
    assert sum(loss.count or 0 for one in found for loss in one.losses) == 15


# Logins and mistakes


ACCOUNT = """authorization { users: [ { user: box, password: right, permissions: {
    publish: [ "$JS.API.STREAM.INFO.RECORDS", "$JS.API.STREAM.MSG.GET.RECORDS", "utracefs.records.here.>" ]
    subscribe: ["_INBOX_box.>"] } }, { user: admin, password: admin } ] }"""


def test_logins(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    options = {"user": "box", "inbox": "_INBOX_box"}
    with serving(tmp_path / "nats", ACCOUNT) as server:
        with server.connection(login=lambda: Login("admin", "admin")) as connection:
            JetStream(connection).create_stream({"name": "RECORDS", "subjects": ["utracefs.records.>"]})
        with target(server.at, options, secrets={"password": str(secret)}) as nats:
            with pytest.raises(OSError, match=f"{secret}: No such file"):
                nats.send(batches(1))
            secret.write_text("wrong")
            with pytest.raises(PermissionError, match="Authorization Violation"):
                nats.send(batches(1))
            secret.write_text("right\n")
            nats.send(batches(1))
            stranger = attrs.evolve(batches(1, first=2)[0], host="there")
            with pytest.raises(PermissionError, match=r'Publish to "utracefs.records.there'):
                nats.send([stranger])
            nats.send(batches(1, first=2))
        with server.connection(login=lambda: Login("admin", "admin")) as connection:
            assert JetStream(connection).stream("RECORDS")["state"]["messages"] == 2


@pytest.mark.parametrize(
    ("address", "options", "text"),
    [
        ("nats://host", {}, "is not nats://"),
        ("nats://host/", {}, "is not nats://"),
        ("nats://host/a.b", {}, "is not nats://"),
        ("nats://host/a/b", {}, "is not nats://"),
        ("nats://host/S?max_bytes=1", {}, "is not nats://"),
        ("nats:///S", {}, "is no HOST:PORT"),
        ("nats://user:secret@host/S", {}, "is no HOST:PORT"),
        ("nats://host:0/S", {}, "is no HOST:PORT"),
        ("nats://host/S", {"max_byte": "1"}, "no option 'max_byte' of nats; there are: compression, "),
        ("nats://host/S", {"max_bytes": "1.5G"}, "is no size"),
        ("nats://host/S", {"max_age": "7w"}, "is not a time"),
        ("nats://host/S", {"replicas": "9"}, "is not 1 to 5"),
        ("nats://host/S", {"compression": "gzip"}, "is none of lz4, zstd, none"),
        ("nats://host/S", {"tls": "no"}, "option tls"),
        ("nats://host/S", {"subject": "a b"}, "is no subject"),
        ("nats://host/S", {"inbox": "a..b"}, "is no subject"),
        ("nats://host/S", {"subject": "a.*.b"}, "is a pattern"),
        ("nats://host/S", {"subject": "a.>"}, "is a pattern"),
        ("nats://host:secret@host:1/S", {}, "is no HOST:PORT"),
        ("nats://host/S?token=secret", {}, "is not nats://"),
        ("otlp://user:secret@host", {}, "not otlp://HOST"),
        ("parquet:s3://key:secret@bucket/x", {}, "no secrets in addresses"),
    ],
)
def test_mistakes(address: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text) as error:
        open_target(address, Settings(options))
    assert "secret@" not in str(error.value) and "=secret" not in str(error.value)


def test_foreign_messages(server: NatsServer) -> None:
    with target(server.at) as nats, server.connection() as connection:
        nats.send(batches(1))
        jetstream = JetStream(connection)
        last = jetstream.last("RECORDS", "utracefs.records.here.f1")
        about = {name: text for name, text in last.headers.items() if name[0] == "U"}
        about |= {"Utracefs-Forwarder": "f2", "Utracefs-Sequence": "9"}
        for n in range(9):
            jetstream.publish("utracefs.records.here.f1", b"hello", about if n % 2 else {})
        assert not nats.send(batches(1, first=2))
        assert nats.note == "9 messages of others on utracefs.records.here.f1 were skipped"
        jetstream.publish("utracefs.records.here.f1", b"hello")
    with target(server.at) as nats, server.connection() as connection:
        assert not nats.send(batches(1, 1, first=2))  # the first one is there
        assert nats.note.startswith("1 messages")
        assert not nats.send(batches(1, first=4)) and not nats.note
        with Reader(JetStream(connection), "RECORDS") as reader:
            assert reader.pending == 14
            found = [one.position.sequence for one in iter(lambda: reader.next(0), None)]
            assert found == [1, 2, 3, 4] and reader.invalid == 10 and not reader.pending


def test_a_send_has_one_deadline(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each of its messages."""
    request = Connection.request

    def slow(self: Connection, *args: Any, **options: Any) -> Any:
        time.sleep(0.15)
        return request(self, *args, **options)

    monkeypatch.setattr(Connection, "request", slow)
    with target(server.at, timeout_s=0.2) as nats, pytest.raises(TimeoutError):
        nats.send(batches(1))


def test_sums(server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The program of docs/forward.md."""
    page = Path("docs/forward.md").read_text()
    (program,) = (one.text for one in blocks(page) if "Reader(" in one.text)
    sent = [attrs.evolve(one, losses=[Loss(EVENT, "ring", 2)]) for one in batches(5, 6, 7)]
    with target(server.at) as nats:
        nats.send(sent)
    host = sent[0].host
    names: dict[str, Any] = {}
    exec(program.replace("localhost:4222", f"{server.address}:{server.port}"), names)  # noqa: S102 (ours)
    assert names["emitted"] == {(host, EVENT): 18 + 6}
    assert capsys.readouterr().out.splitlines() == [f"{host} {EVENT} [{n}]" for n in (5, 6, 7)]


# TLS


def tls_config(folder: Path, *, wants_client: bool = False) -> str:
    return (
        f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.key", '
        f'ca_file: "{folder}/ca.pem", '
        f"verify: {'true' if wants_client else 'false'} }}"
    )


def test_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    with serving(tmp_path / "nats", tls_config(tmp_path)) as server:
        with target(server.at, ca=str(tmp_path / "ca.pem")) as nats:
            nats.send(batches(3))
        with target(server.at) as stranger, pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.send(batches(3))


def test_tls_is_not_left_out(server: NatsServer, tmp_path: Path) -> None:
    certificates(tmp_path)
    for options, ca in ((LIMITS, str(tmp_path / "ca.pem")), ({**LIMITS, "tls": "yes"}, None)):
        with target(server.at, options, ca=ca) as nats, pytest.raises(PermissionError, match="no TLS"):
            nats.send(batches(3))


def test_client_certificates_are_read_anew(tmp_path: Path) -> None:
    certificates(tmp_path)
    certificates(tmp_path, name="client", days="0")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key"))
    with serving(tmp_path / "nats", tls_config(tmp_path, wants_client=True)) as server:
        with target(server.at, ca=ca) as nats, pytest.raises(ConnectionError):
            nats.send(batches(3))
        with target(server.at, ca=ca, cert=cert, key=key) as nats:
            with pytest.raises(ConnectionError):
                nats.send(batches(3))
            certificates(tmp_path, name="client")
            nats.send(batches(3))
