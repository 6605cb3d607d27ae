"""The name of what is not complete yet."""

import pytest

from utracefs.half_written import name_beside


@pytest.mark.parametrize("path", ["/a/b", "b", f"/a/{'b' * 255}"])
def test_it_is_in_the_same_folder_and_always_another_one(path: str) -> None:
    folder = path.rpartition("/")[0]
    names = {name_beside(path) for _ in range(100)}
    assert len(names) == 100
    for name in names:
        assert name.rpartition("/")[0] == folder
        assert name.rpartition("/")[2].startswith(".utracefs-") and len(name) < len(folder) + 64
