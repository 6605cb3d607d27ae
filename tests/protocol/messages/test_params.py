"""Every class for the params of a method fulfils Params."""

from utracefs_protocol.messages import data, tracefs
from utracefs_protocol.messages.params import Params


def test_all_methods_of_both_sockets_have_it() -> None:
    wanted = {name for name in vars(Params) if name.endswith("_params")}
    assert wanted == {"from_params", "to_params"}
    for methods in (data.METHODS, tracefs.METHODS):
        assert methods
        for name, kind in methods.items():
            assert name == kind.METHOD
            assert all(callable(getattr(kind, member)) for member in wanted)
