"""Where options count their changes; the rest is tested through the tree (test_instance_files, test_top)."""

from utracefsd.consumers.ftrace.options import Options, default_options
from utracefsd.consumers.ftrace.settings import Settings


def test_changes_are_counted_where_they_show() -> None:
    top = Options(Settings(options=default_options(top=True)))
    other = Options(Settings(options=default_options(top=False)), top)
    before = top.changes, other.changes
    other.set("raw", True)
    assert (top.changes, other.changes > before[1]) == (before[0], True)
    before = top.changes, other.changes
    other.set("printk-msg-only", True)
    assert top.changes > before[0]
    assert other.changes > before[1]
