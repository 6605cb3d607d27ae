"""The units under a real systemd: pid 1 of its own namespaces, which contain nothing else.

Mounts, processes, names, network and the cgroup tree are private. Its root is a tmpfs with /usr, Python and
this source tree mounted into it, read-only; so are /sys and /proc/sys. /dev, /dev/shm, /run, /tmp, /etc and
/var are its own, and its units those of the folder systemd/, with only the path of the command changed. It
ends with all its processes when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.client.daemons.fake_daemon import wait_for

ROOT = Path(__file__).parents[3]
SYSTEMD = Path("/usr/lib/systemd/systemd")
PYTHON = f"/opt/python/bin/python{sysconfig.get_python_version()}"
ENVIRONMENT = {
    "PYTHONPATH": "/opt/source/protocol:/opt/source/client:/opt/source/daemon:/opt/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "PATH": "/usr/bin:/usr/sbin:/bin:/sbin",
}
TOOLS = ("unshare", "nsenter", "mount", "pivot_root", "systemctl")

BEGIN = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$NEW"
cd "$NEW"
mkdir -p usr etc/systemd/system proc sys dev run tmp var root opt/source opt/python opt/site
chmod 1777 tmp
for link in bin sbin lib lib64 lib32; do if [ -L /$link ]; then cp -P /$link .; fi; done
readonly_bind() { mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; }
readonly_bind /usr usr
readonly_bind "$SOURCE" opt/source
readonly_bind "$PREFIX" opt/python
readonly_bind "$SITE" opt/site
for units in system system-generators system-environment-generators; do
    if [ -d usr/lib/systemd/$units ]; then mount -t tmpfs tmpfs usr/lib/systemd/$units; fi
done
mount -t proc proc proc
readonly_bind proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s /proc/self/fd dev/fd
cp /etc/ld.so.cache /etc/nsswitch.conf etc/
printf 'root:x:0:0::/root:/bin/sh\nutracefs:x:997:997::/:/usr/sbin/nologin\n' > etc/passwd
printf 'root:x:0:\nutracefs:x:997:\ntracing:x:996:\n' > etc/group
echo 0123456789abcdef0123456789abcdef > etc/machine-id
units=etc/systemd/system
for target in sysinit basic shutdown sockets multi-user; do
    printf '[Unit]\nDefaultDependencies=no\n' > $units/$target.target
done
printf '[Unit]\nDefaultDependencies=no\nRequires=utracefsd.socket\nAfter=utracefsd.socket\n' \
    > $units/test.target
cp opt/source/systemd/*.socket opt/source/systemd/*.service $units
sed -i "s|^ExecStart=/usr/bin/utracefsd|ExecStart=$PYTHON -m utracefsd|" $units/utracefsd.service
sed -i "s|^ExecStart=/usr/bin/utracefs|ExecStart=$PYTHON -m utracefs|" $units/utracefs-metrics.service
mkdir $units/utracefsd.service.d $units/utracefs-metrics.service.d
printf '[Service]\nEnvironment="PYTHONPATH=%s" LD_LIBRARY_PATH=%s\n%s\n%s\n' \
    "$PYTHONPATH" "$LD_LIBRARY_PATH" StandardError=append:/run/daemon.log "$MORE" \
    > $units/utracefsd.service.d/test.conf
grep Environment $units/utracefsd.service.d/test.conf > $units/utracefs-metrics.service.d/test.conf
sed -i '1i [Service]' $units/utracefs-metrics.service.d/test.conf
mkdir -m 700 dev/shm/utracefs
chown 997:997 dev/shm/utracefs
mkdir old
pivot_root . old
umount -l /old
rmdir /old
export container=utracefs-test
exec /usr/lib/systemd/systemd --system --unit=test.target --log-target=console --show-status=no
"""

PRODUCER = """
import os, sys, time
import utracefs
event = utracefs.event("real u32 n")
print(os.getpid(), flush=True)
n = 0
for line in sys.stdin:
    deadline = time.monotonic() + 60
    while not (event.registered and event):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for n in range(n, n + int(line)):
        event.emit(n)
    n += 1
    print(utracefs.flush(0), utracefs.stats().lost, flush=True)
"""


def own_cgroups() -> Path | None:
    """Where the unified cgroup tree is writable."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and "rw" in after.split()[2].split(","):
            place = Path(before.split()[4])
            if os.access(place / "cgroup.procs", os.W_OK):
                return place
    return None


def what_is_missing() -> str:
    if os.geteuid():
        return "not root"
    if not SYSTEMD.exists():
        return "no systemd"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"no {', '.join(missing)}"
    if own_cgroups() is None:
        return "no cgroup v2 that can be written to"
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--cgroup", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"namespaces are refused: {done.stderr.strip()}"


class Machine:
    """Processes below that systemd."""

    def __init__(self, folder: Path, more: str = "") -> None:
        cgroups = own_cgroups()
        assert cgroups is not None
        self._folder = folder
        self._cgroup = cgroups / f"utracefs-test-{os.getpid()}-{folder.name}"
        self._cgroup.mkdir()
        (folder / "root").mkdir()
        script = folder / "begin.sh"
        script.write_text(
            f"echo 0 > {self._cgroup}/cgroup.procs\nexec unshare --mount --pid --fork --kill-child "
            f"--uts --ipc --cgroup --net bash {folder}/system.sh\n"
        )
        (folder / "system.sh").write_text(BEGIN)
        environ = ENVIRONMENT | {
            "NEW": str(folder / "root"),
            "SOURCE": str(ROOT),
            "PREFIX": sys.base_prefix,
            "SITE": sysconfig.get_path("purelib"),
            "PYTHON": PYTHON,
            "MORE": more,
        }
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            ["bash", script], env=environ, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        try:
            wait_for(self._is_up, 60, what=self.log)
        except BaseException:
            self.close()
            raise

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self.log()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text() != "systemd\n":
            return False
        self._pid1 = children[0]
        done = subprocess.run(
            [*self._enter(), "systemctl", "is-active", "utracefsd.socket"], capture_output=True, check=False
        )
        return done.stdout == b"active\n"

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", self._pid1, "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w", "env", "-i",
                *(f"{name}={value}" for name, value in ENVIRONMENT.items())]  # fmt: skip

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [*self._enter(), *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.daemon_log()}"
        return done.stdout

    def daemon_log(self) -> str:
        return subprocess.run(
            [*self._enter(), "cat", "/run/daemon.log"], capture_output=True, text=True, check=False
        ).stdout

    def utracefs(self, *arguments: str) -> str:
        return self.run(PYTHON, "-m", "utracefs", *arguments)

    def shown(self, property_: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", property_, "utracefsd.service").strip()

    def numbers(self) -> list[int]:
        return [int(n, 16) for n in re.findall(r"real: n=(\w+)", self.utracefs("cat", "trace"))]

    @contextlib.contextmanager
    def producer(self) -> Iterator[Producer]:
        """A program that emits as many records as each line demands."""
        with subprocess.Popen(
            [*self._enter(), PYTHON, "-c", PRODUCER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                yield Producer(self, process, process.stdout.readline().strip())
            finally:
                process.kill()

    def close(self) -> None:
        with contextlib.suppress(AttributeError, ProcessLookupError):
            os.kill(int(self._pid1), signal.SIGKILL)
        self._process.kill()
        self._process.wait(60)
        self._log.close()
        wait_for(lambda: _removed(self._cgroup), 10, what=lambda: f"the end of what is in {self._cgroup}")


def _removed(cgroup: Path) -> bool:
    for path in (*sorted((p for p in cgroup.rglob("*") if p.is_dir()), reverse=True), cgroup):
        with contextlib.suppress(OSError):
            path.rmdir()
    return not cgroup.exists()


@attrs.frozen
class Producer:
    """A program on a machine."""

    machine: Machine
    process: subprocess.Popen[str]
    """nsenter, which forks to enter the namespace of processes."""
    pid: str
    """Pid of the program, on the machine."""

    def emit(self, count: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().split()[1] == "0"  # nothing lost

    def kill(self) -> None:
        self.machine.run("kill", "-KILL", self.pid)
        self.process.wait(60)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if missing := what_is_missing():
        pytest.skip(missing)
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.close()


SCRAPE = """
import urllib.request
try:
    print(urllib.request.urlopen("http://127.0.0.1:9847/metrics", timeout=60).read().decode())
except OSError as error:
    print(error)
"""


def test_the_metrics_service(machine: Machine) -> None:
    """Its hardening leaves it all that it needs; it stays when the daemon does not answer."""
    machine.run("systemctl", "start", "utracefs-metrics.service")
    wait_for(lambda: "utracefs_up 1.0\n" in machine.run(PYTHON, "-c", SCRAPE), 20, what=machine.log)
    machine.run("kill", "-STOP", machine.shown("MainPID"))
    wait_for(lambda: "utracefs_up 0.0\n" in machine.run(PYTHON, "-c", SCRAPE), 20, what=machine.log)
    machine.run("kill", "-CONT", machine.shown("MainPID"))
    machine.run("systemctl", "stop", "utracefs-metrics.service")
    found = machine.run("systemctl", "show", "--value", "-p", "Result", "utracefs-metrics.service")
    assert found == "success\n"


def test_the_service_from_its_first_connection_to_its_stop(machine: Machine) -> None:
    """Socket activation; kill -9 of the daemon after that of a program whose records it had not taken in;
    stop, and start by the next connection."""
    assert machine.shown("ActiveState") == "inactive"
    with machine.producer() as producer, machine.producer() as other:
        machine.utracefs("enable", "user_events:real")
        assert machine.shown("ActiveState") == "active"
        assert machine.shown("StatusErrno") == "0"
        producer.emit(100)
        wait_for(lambda: len(machine.numbers()) == 100)
        wait_for(lambda: machine.shown("NFileDescriptorStore") == "2", what=machine.log)

        # Records that the daemon has not read are only in the ring, and the program ends before the next one
        # starts.
        daemon = machine.shown("MainPID")
        machine.run("kill", "-STOP", daemon)
        producer.emit(1000)
        producer.kill()
        machine.run("kill", "-KILL", daemon)
        wait_for(lambda: machine.shown("MainPID") not in ("0", daemon), 20, what=machine.log)
        assert machine.shown("NRestarts") == "1"
        wait_for(lambda: len(machine.numbers()) >= 1100, 20, what=lambda: machine.daemon_log())
        assert machine.numbers() == list(range(1100))

        # The surviving program continues.
        other.emit(10)
        wait_for(lambda: machine.numbers() == [*range(1100), *range(10)], 20, what=machine.daemon_log)

        # A restart keeps everything, also for connected programs.
        machine.run("systemctl", "restart", "utracefsd.service")
        other.emit(5)
        wait_for(lambda: machine.numbers() == [*range(1100), *range(15)], 20, what=machine.daemon_log)
        other.kill()

    machine.run("systemctl", "stop", "utracefsd.service")
    assert machine.shown("ActiveState") == "inactive"
    assert machine.shown("Result") == "success"
    assert machine.run("systemctl", "is-active", "utracefsd.socket") == "active\n"
    assert machine.numbers() == [*range(1100), *range(15)]
    assert machine.shown("ActiveState") == "active"

    machine.run("systemctl", "stop", "utracefsd.service", "utracefsd.socket")
    assert machine.run("ls", "/run/utracefs").split() in ([], ["utracefsd.lock"])


def test_rings_over_a_stop(tmp_path: Path) -> None:
    """FileDescriptorStorePreserve=yes in a drop-in, as described in the unit."""
    if missing := what_is_missing():
        pytest.skip(missing)
    version = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.split()[1]) < 254:
        pytest.skip(f"systemd {version.split()[1]}; 254 is the first that knows FileDescriptorStorePreserve")
    machine = Machine(tmp_path, "FileDescriptorStorePreserve=yes")
    try:
        with machine.producer() as producer:
            machine.utracefs("enable", "user_events:real")
            producer.emit(10)
            machine.run("systemctl", "stop", "utracefsd.service")
            assert machine.shown("NFileDescriptorStore") == "1"
        assert machine.numbers() == list(range(10))
    finally:
        machine.close()
