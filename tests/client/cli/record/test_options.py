"""The options of long recordings."""

import os

import pytest

from tests.client.cli.kit import Cli


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--flight", "1M", "--snapshot"], "without --keep, --snapshot"),
        (["--flight", "1M", "--keep"], "without --keep, --snapshot"),
        (["--flight", "1M", "--no-overwrite"], "--no-overwrite"),
        (["--flight", "1M", "-b", "100"], "without -b"),
        (["--flight", "1M", "--switch-output", "1M"], "take one"),
        (["--flight", "64"], "is not SIZE"),
        (["--max-files", "3"], "goes with"),
        (["--flight", "1M", "--max-files", "0"], "max-files"),
        (["--switch-output", "1M", "--snapshot"], "take one"),
        (["--switch-output", "1M", "-o", "x.jsonl"], "utracefs export"),
        (["--compress", "-o", "x.jsonl"], "utracefs export"),
        (["--compress=lzma"], "lzma"),
    ],
)
def test_options_that_exclude_each_other(cli: Cli, words: list[str], says: str) -> None:
    assert says in cli.fails("record", *words, "--", "touch", "ran", status=2)
    assert os.listdir(cli.home) == []
