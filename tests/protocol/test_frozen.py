"""Frozen, beside what attrs makes of the same class."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest

from utracefs_protocol.frozen import Frozen


class Point(Frozen):
    """Two members, one of them with a default."""

    METHOD: ClassVar[str] = "point"

    x: int
    """The first."""
    y: int = 7

    @property
    def sum(self) -> int:
        return self.x + self.y


class Other(Frozen):
    x: int
    y: int = 7


class Empty(Frozen):
    pass


@attrs.frozen
class Model:
    METHOD: ClassVar[str] = "point"

    x: int
    y: int = 7


def make(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    try:
        made = kind(*args, **kwargs)
    except TypeError:
        return "TypeError"
    return repr(made).replace(kind.__name__, "Point")


@pytest.mark.parametrize("args", [(), (1,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("kwargs", [{}, {"x": 5}, {"y": 6}, {"x": 5, "y": 6}, {"z": 1}, {"x": 5, "z": 1}])
def test_made_as_attrs_does(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert make(Point, args, kwargs) == make(Model, args, kwargs)


def test_it_is_made_of_its_members() -> None:
    point = Point(1)
    assert (point.x, point.y, point.sum, point.METHOD) == (1, 7, 8, "point")
    assert repr(Empty()) == "Empty()"
    match point:
        case Point(x, y):
            assert (x, y) == (1, 7)
        case _:
            raise AssertionError


def test_another_with_a_member_changed() -> None:
    assert Point(1).evolve(y=2) == Point(1, 2)
    with pytest.raises(TypeError):
        Point(1).evolve(z=2)


def test_it_does_not_change() -> None:
    point = Point(1)
    for name in ("x", "y", "new", "METHOD"):
        with pytest.raises(AttributeError):
            setattr(point, name, 2)
    with pytest.raises(AttributeError):
        del point.x
    assert not hasattr(point, "__dict__")
    assert point == Point(1, 7)


def test_compared_by_class_and_value() -> None:
    assert Point(1) == Point(x=1, y=7)
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 7)
    assert Empty() == Empty()
    assert len({Point(1), Point(1, 7), Point(2), Other(1)}) == 3
    with pytest.raises(TypeError):
        hash(Point([]))  # type: ignore[arg-type]
