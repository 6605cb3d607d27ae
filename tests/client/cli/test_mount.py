"""`utracefs mount`: its errors. The mount itself: tests/integration/mount/test_mount_life.py."""

import os
import select
from pathlib import Path

import pytest

from tests.client.cli.kit import ANSWER_S, Cli
from tests.integration.mount.mounting import must_mount


def test_usage(cli: Cli) -> None:
    assert "Mount the tree, for cat" in cli.out("mount", "--help")
    assert "Missing argument 'MOUNTPOINT'" in cli.fails("mount", status=2)


def test_no_daemon(cli: Cli, home: Path) -> None:
    for options in ([], ["--foreground"]):
        error = cli.fails("--dir", str(home / "d"), "mount", *options, str(home))
        assert error == (
            f"utracefs: {home}/d/tracefs: no daemon is there; start one with `utracefs daemon`\n"
        )


@pytest.mark.parametrize("option", [["--wait"], ["--foreground"], ["--allow-other"], ["--group", "0"]])
def test_options_of_a_mount_that_stays(option: list[str], cli: Cli, home: Path) -> None:
    assert "go without a COMMAND" in cli.fails("mount", *option, str(home), "--", "true", status=2)


def test_a_mount_for_a_command(cli: Cli, home: Path) -> None:
    """It has a daemon of its own where none runs; afterwards nothing is mounted and no process is left."""
    must_mount(home / "probe")
    place = home / "tree"
    place.mkdir()
    done = cli.run("mount", str(place), "--", "sh", "-c", f"cat {place}/current_tracer; exit 3", status=3)
    assert done.stdout == b"nop\n"
    assert list(place.iterdir()) == []
    assert cli.fails("mount", str(place), "--", "nosuch", status=127).endswith("command not found\n")
    assert f"{home}/none: there is no such directory" in cli.fails("mount", f"{home}/none", "--", "true")


def test_a_command_ends_with_a_killed_mount(cli: Cli, home: Path) -> None:
    must_mount(home / "probe")
    with cli.start("mount", str(home / "probe"), "--", "sh", "-c", "echo $$; exec sleep 100") as process:
        assert process.stdout
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        assert select.select([pidfd], [], [], ANSWER_S)[0]
        os.close(pidfd)
