"""`utracefs mount`: what it says when it cannot. What it does: tests/integration/test_mount_life.py."""

from pathlib import Path

from tests.client.cli.kit import Cli


def test_usage(cli: Cli) -> None:
    assert "Mount the tree, for cat" in cli.out("mount", "--help")
    assert "Missing argument 'MOUNTPOINT'" in cli.fails("mount", status=2)


def test_no_daemon(cli: Cli, home: Path) -> None:
    for options in ([], ["--foreground"]):
        error = cli.fails("--dir", str(home / "d"), "mount", *options, str(home))
        assert error == (
            f"utracefs: {home}/d/tracefs: no daemon is there; start one with `utracefs daemon`\n"
        )


def test_no_such_group(cli: Cli, home: Path) -> None:
    error = cli.fails("mount", "--group", "no-such-group", str(home))
    assert error == "utracefs: no-such-group: no such group\n"


def test_no_such_directory(traced: Cli, home: Path) -> None:
    for options in ([], ["--foreground"]):
        error = traced.fails("mount", *options, str(home / "none"))
        assert error == f"utracefs: {home / 'none'}: No such file or directory\n"
