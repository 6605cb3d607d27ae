"""A real nats-server on a free port of the loopback: start, stop, kill, empty its store."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.client.daemons.fake_daemon import wait_for
from tests.judges import judge
from utracefs.nats.connection import Connection, Server

WAIT_S = 30


class NatsServer:
    """config: lines of its configuration, beside port and store. within: a command that runs it, as nsenter,
    where it listens on `address`."""

    def __init__(
        self, folder: Path, config: str = "", within: Sequence[str] = (), address: str = "127.0.0.1"
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.config = config
        self.within = within
        self.address = address
        self.port = -1
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = self.folder / "nats.conf"
        path.write_text(
            f"listen: {self.address}:{self.port}\n"
            f'jetstream {{ store_dir: "{self.folder / "store"}" }}\n'
            f'ports_file_dir: "{self.folder}"\n{self.config}\n'
        )
        log = self.folder / "log"
        with log.open("wb") as file:
            process = self._process = subprocess.Popen(
                [*self.within, judge("nats-server"), "-c", str(path)], stdout=file, stderr=file
            )
        ports = self.folder / f"nats-server_{process.pid}.ports"

        def port() -> int:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
                return int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])
            return 0

        self.port = wait_for(port, WAIT_S, what=log.read_text)
        ports.unlink()

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(WAIT_S)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def empty(self) -> None:
        shutil.rmtree(self.folder / "store")

    @property
    def at(self) -> Server:
        return Server(self.address, self.port)

    def connection(self, **options: Any) -> Connection:
        return Connection([self.at], **{"timeout_s": WAIT_S, **options})


@contextlib.contextmanager
def serving(
    folder: Path, config: str = "", within: Sequence[str] = (), address: str = "127.0.0.1"
) -> Iterator[NatsServer]:
    server = NatsServer(folder, config, within, address)
    server.start()
    try:
        yield server
    finally:
        server.kill()
