"""Each kind of comparison can be run."""

from __future__ import annotations

import itertools

import pytest

from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.filter import Filter
from utracefs_protocol.filter.predicate import How, Predicate, Subject
from utracefsd.machine._writer_names import WriterNames

TEXTS = {Subject.ARRAY, Subject.DATA_LOC, Subject.REL_LOC, Subject.COMM}
OF_TEXTS = {How.FULL, How.FRONT, How.END, How.MIDDLE, How.GLOB}
WORD = Field(b"u32", b"a", 8, 4, False, FieldKind.INTEGER)


@pytest.mark.parametrize(("subject", "how"), list(itertools.product(Subject, How)))
def test_what_may_be_compared_how(subject: Subject, how: How) -> None:
    field = {
        Subject.CPU: None,
        Subject.COMM: None,
        Subject.NOTHING: None,
        Subject.COMMON: Field(b"int", b"common_pid", 4, 4, True, FieldKind.INTEGER),
    }.get(subject, WORD)
    predicate = Predicate(subject, how, b"x" if how in OF_TEXTS else 1, field)

    def run() -> bool:
        return Filter(b"", [(predicate, 1, 2)], WriterNames(lambda pid: b"x")).test(bytes(4))

    if subject is not Subject.NOTHING and (subject in TEXTS) != (how in OF_TEXTS):
        with pytest.raises(ValueError, match="texts and numbers"):
            run()
    else:
        assert isinstance(run(), bool)
