"""A session with a fake daemon: events that are on or off, and the records that arrive."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest import mock

from tests.client.daemons.fake_daemon import REFUSED, FakeDaemon, wait_for
from utracefs import Event, Session
from utracefs.producer.declarations.checking import check_declaration
from utracefs.producer.declarations.declaring import name_args

__all__ = ["REFUSED", "Workbench"]


class Workbench:
    """Owns all of it until `close`."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="utracefs-bench-"))
        self.daemon = FakeDaemon(self.directory).start()
        with mock.patch.dict("os.environ", UTRACEFS_DATA_RING="0"):
            self.session = Session(self.directory)
        self.status = 1
        """Status byte of events to come."""
        self._commands: list[bytes] = []
        self._sent = [0, 0]

    def close(self) -> None:
        self.session.close()
        self.daemon.stop()
        shutil.rmtree(self.directory)

    def event(self, declaration: bytes) -> Event:
        """Registered, and as `status` says."""
        command = name_args(check_declaration(declaration).canonical())
        if self.status:
            self.daemon.enabled_from_start.add(command)
        event = self.session.event(declaration)
        wait_for(lambda: event.registered)
        self._commands.append(command)
        return event

    def set_status(self, event: Event, byte: int) -> None:
        self.daemon.set_status(event.declaration.encode(), byte)

    def send(self) -> list[tuple[int, bytes]]:
        """The data received since the last call, records before refusals: (number of the event, from 1 on,
        with REFUSED for a refusal; payload)."""
        assert self.session.flush(60)
        numbers = {command: number for number, command in enumerate(self._commands, 1)}
        found = []
        for kind, (flag, came) in enumerate(
            ((0, self.daemon.last.records), (REFUSED, self.daemon.last.refusals))
        ):
            found += [(flag | numbers[command], payload) for command, payload in came[self._sent[kind] :]]
            self._sent[kind] = len(came)
        return found
