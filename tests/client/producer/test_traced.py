"""Decorated generators and coroutines: between their steps the caller's span is the present one, and all that
a caller can see of them is that of the plain ones."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import gc
import inspect
import pickle
import traceback
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Self
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.producer.test_span import Declare, Records, function_that_raises, off, offline, on, records
from utracefs.producer._span import current

__all__ = ["off", "on", "records"]


def test_a_decorated_function_stays_what_it_was(off: Declare) -> None:
    span = off("call", a=1)

    @span
    async def coroutine(a: int, *, b: str = "x") -> None:
        """Text."""

    assert inspect.iscoroutinefunction(coroutine)
    assert str(inspect.signature(coroutine)) == "(a: 'int', *, b: 'str' = 'x') -> 'None'"
    assert coroutine.__doc__ == "Text."
    assert coroutine.__module__ == __name__
    assert pickle.loads(pickle.dumps(DECORATED)) is DECORATED
    assert span(print)("x", end="") is None

    class Shop:
        @span
        def method(self, n: int) -> tuple[Any, int]:
            return self, n

        @classmethod
        @span
        def of_class(cls) -> type:
            return cls

        @staticmethod
        @span
        def of_none(n: int) -> int:
            return n

    shop = Shop()
    assert shop.method(1) == (shop, 1)
    assert shop.method.__self__ is shop
    assert Shop.method(shop, n=2) == (shop, 2)
    assert shop.of_class() is Shop
    assert Shop.of_none(3) == 3


class Plain:
    """Each way to write a member of a class."""

    def method(self) -> object:
        return self, "method"

    @classmethod
    def of_class(cls) -> object:
        return cls, "class"

    @staticmethod
    def of_none() -> object:
        return "static"

    @property
    def value(self) -> object:
        return "value"

    @functools.cached_property
    def cached(self) -> object:
        return object()

    partial = functools.partialmethod(str.join, "-")

    def __new__(cls, *args: Any) -> Self:
        return super().__new__(cls)

    def __init_subclass__(cls) -> None:
        setattr(cls, "subclassed", True)  # noqa: B010

    def __class_getitem__(cls, item: object) -> object:
        return cls, item


def test_members_of_classes_in_either_order(off: Declare) -> None:
    span = off("call")
    members = {name: vars(Plain)[name] for name in vars(Plain) if name not in ("__dict__", "__weakref__")}
    for strict in (False, True):  # as if on
        before = utracefs.strict(strict)
        try:
            above = {
                name: span(value) if callable(value) or hasattr(value, "__get__") else value
                for name, value in members.items()
            }
            # (A class made of functions of plain classes would call the other's super().)
            above["__new__"] = span(lambda cls, *args: object.__new__(cls))
            traced: Any = type("Plain", (), above)
            one = traced()
            assert one.method() == (one, "method")
            assert traced.of_class() == one.of_class() == (traced, "class")
            assert traced.of_none() == one.of_none() == "static"
            assert one.value == "value"
            assert one.cached is one.cached
            assert isinstance(vars(traced)["of_none"], staticmethod)
            assert traced[1] == (traced, 1)
            assert vars(type("Sub", (traced,), {}))["subclassed"]
        finally:
            utracefs.strict(before)
    for wrong in (int, functools.singledispatchmethod(print)):
        with pytest.raises(TypeError, match="decorates functions, not"):
            span(wrong)


def test_objects_bind_as_they_did(off: Declare) -> None:
    span = off("call")

    class Binds:
        def __call__(self) -> str:
            return "unbound"

        def __get__(self, instance: object, owner: object) -> Callable[[], object]:
            return lambda: instance

    class Shop:
        builtin = span(len)
        bound = span([1, 2].count)
        binds = span(Binds())

    shop: Any = Shop()
    assert (shop.builtin("ab"), shop.bound(1), shop.binds()) == (2, 1, shop)


def test_a_function_s_attributes_are_its_own(off: Declare) -> None:
    def function(a: int, *, b: int = 1) -> int:
        """Text."""
        return a

    plain: Any = function
    traced: Any = off("call")(plain)
    for name in dir(plain):
        if not callable(getattr(plain, name)):
            assert getattr(traced, name) == getattr(plain, name), name
    assert inspect.getsource(traced) == inspect.getsource(plain)
    assert inspect.unwrap(traced) is plain
    assert copy.copy(traced) is copy.deepcopy(traced) is traced
    assert weakref.ref(traced)() == traced
    traced.own = 5
    traced.__defaults__ = (7,)
    assert (vars(traced), traced(), plain.own) == ({"own": 5}, 7, 5)
    del traced.own
    assert not hasattr(plain, "own")
    wrapper = functools.wraps(traced)(lambda: None)
    assert (wrapper.__name__, vars(wrapper)) == ("function", {"__wrapped__": traced})
    dispatched = functools.singledispatch(traced)
    dispatched.register(str, off("other")(lambda text: text))
    assert (dispatched("x"), dispatched(3)) == ("x", 3)
    assert inspect.isfunction(traced)


def test_an_exception_has_the_traceback_of_the_plain_function(on: Declare, records: Records) -> None:
    span = on("call")
    with pytest.raises(KeyError) as caught:
        span(function_that_raises)(KeyError)
    assert [entry.name for entry in caught.traceback][1:] == ["function_that_raises"]
    assert [r["error"] for r in records(span)[1]] == ["KeyError"]


def test_partials_are_partials_and_other_objects_are_called(off: Declare) -> None:
    span = off("call")

    async def coroutine(n: int) -> None: ...

    assert inspect.iscoroutinefunction(span(functools.partial(coroutine, 1)))
    assert span(mock.Mock(return_value=5))() == 5  # it has any attribute


class LooksLikeAGenerator:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.__code__ = function.__code__

    def __call__(self) -> int:
        return 5


def test_an_object_with_the_code_of_a_generator(on: Declare) -> None:
    made = on("call")(steps)()
    assert on("call")(LooksLikeAGenerator(steps))() == 5
    with pytest.raises((AttributeError, TypeError)):
        next(type(made).__new__(type(made)))  # not by the class of a generator, which has none to give
    made.close()


def test_strict_calls_raise_also_when_off(off: Declare) -> None:
    span = off("order u8 order", order=1000)
    before = utracefs.strict(True)
    try:
        with pytest.raises(OverflowError):
            span(print)()
    finally:
        utracefs.strict(before)


def decorated() -> None:
    pass


DECORATED = decorated = offline()(decorated)


def test_calls_of_a_method_while_it_is_on(on: Declare, records: Records) -> None:
    span = on("call", kind="card")

    class Shop:
        @span
        def method(self, n: int, *, m: int = 0) -> int:
            assert current() is not None
            return n + m

    assert Shop().method(1, m=2) == 3
    assert [r["kind"] for r in records(span)[1]] == ["card"]
    with pytest.raises(TypeError, match="argument"):
        Shop().method()  # type: ignore[call-arg]


def test_the_span_of_a_coroutine_begins_with_its_first_step(on: Declare, records: Records) -> None:
    span = on("call")

    @span
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    made = work()
    assert getattr(made, "__name__", "") == "work"
    assert current() is None
    assert asyncio.run(made) == 5
    assert len(records(span)[1]) == 1


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_never_starts_is_closed(on: Declare, recwarn: pytest.WarningsRecorder) -> None:
    @on("call")
    async def work() -> None: ...

    async def main() -> None:
        task = asyncio.create_task(work())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert not recwarn.list


def test_an_exception_sent_to_a_generator_is_freed(on: Declare) -> None:
    @on("steps")
    def steps() -> Generator[None, None, None]:
        with contextlib.suppress(KeyError):
            yield
        yield

    class Sent(KeyError):
        pass

    made, error = steps(), Sent()
    freed = weakref.ref(error)
    gc.disable()
    try:
        next(made)
        made.throw(error)
        del error
        assert freed() is None
    finally:
        gc.enable()
        made.close()


def test_a_generator_is_itself_in_all_ways(on: Declare, records: Records) -> None:
    span, inner = on("steps"), on("inner")

    @span
    def steps() -> Generator[Any, Any, str]:
        with inner() as own:
            got = yield "first"
            assert current() is own
            try:
                yield got
            except KeyError:
                yield "caught"
        return "end"

    with span() as callers:
        made = steps()
        assert next(made) == "first"
        assert current() is callers
        assert made.send("sent") == "sent"
        assert made.throw(KeyError) == "caught"
        assert current() is callers
        with pytest.raises(StopIteration, match="end"):
            next(made)
        assert current() is callers
    begins, ends = records(span)
    assert begins[1]["parent_id"] == callers.span_id
    assert records(inner)[0][0]["parent_id"] == begins[1]["span_id"]
    assert [r["error"] for r in ends] == ["", ""]


def test_a_generator_closed_early_and_in_another_context(on: Declare, records: Records) -> None:
    span, caller = on("steps"), on("caller")

    @span
    def steps() -> Generator[int, None, None]:
        yield 1

    made = steps()
    next(made)
    with caller() as callers:
        made.close()
        assert current() is callers
    elsewhere = steps()
    next(elsewhere)
    contextvars.Context().run(elsewhere.close)
    never = steps()
    never.close()
    assert [r["error"] for r in records(span)[1]] == ["GeneratorExit", "GeneratorExit"]


def test_an_async_generator(on: Declare, records: Records) -> None:
    span, caller = on("steps"), on("caller")
    closed = []

    @span
    async def steps() -> AsyncGenerator[Any, Any]:
        try:
            got = yield 1
            await asyncio.sleep(0)
            try:
                yield got
            except KeyError:
                yield "caught"
        finally:
            closed.append(1)

    async def main() -> None:
        with caller() as callers:
            made = steps()
            assert await anext(made) == 1
            assert current() is callers
            assert await made.asend("sent") == "sent"
            assert await made.athrow(KeyError) == "caught"
            with pytest.raises(StopAsyncIteration):
                await anext(made)
            early = steps()
            await anext(early)
            await early.aclose()
            assert current() is callers

    asyncio.run(main())
    assert len(closed) == 2
    assert [r["error"] for r in records(span)[1]] == ["", "GeneratorExit"]


def test_a_generator_that_is_dropped(on: Declare, records: Records) -> None:
    span, inner, caller = on("steps"), on("inner"), on("caller")

    @span
    def steps() -> Generator[int, None, None]:
        with inner():
            yield 1

    @span
    async def async_steps() -> AsyncGenerator[int, None]:
        with inner():
            yield 1

    async def main() -> None:
        with caller() as callers:
            next(steps())
            assert current() is callers
            async for _ in async_steps():
                break
            assert current() is callers
            for _ in range(5):
                await asyncio.sleep(0)
            assert current() is callers

    asyncio.run(main())
    assert current() is None
    for one in (span, inner):
        assert [r["error"] for r in records(one)[1]] == ["GeneratorExit"] * 2
    assert [r["parent_id"] for r in records(inner)[1]] == [r["span_id"] for r in records(span)[1]]


# ---- what a caller sees

BODY = """
{decorator}
{kind} body(reactions, got=None):
    for reaction in reactions:
        try:
            got = {step}(reaction, got)
        except GeneratorExit:
            if reaction == "return":
                return {value}
            if reaction == "continue":
                got = {step}("ignored")
            elif reaction == "raise":
                raise KeyError(reaction)
            else:
                raise
        except KeyError as error:
            if reaction == "return":
                return {value}
            if reaction == "stop":
                raise StopIteration(5)
            if reaction == "raise":
                raise IndexError from error
            got = type(error.__context__)
"""
FORMS = {
    "generator": {"decorator": "", "kind": "def", "step": "yield "},
    "nested": {"decorator": "", "kind": "def", "step": "yield from steps"},
    "types.coroutine": {"decorator": "@types.coroutine", "kind": "def", "step": "yield "},
    "coroutine": {"decorator": "", "kind": "async def", "step": "await steps"},
    "async generator": {"decorator": "", "kind": "async def", "step": "yield ", "value": ""},
    "awaiting": {"decorator": "", "kind": "async def", "step": "yield await steps", "value": ""},
}


@types.coroutine
def steps(*values: object) -> Generator[object, object, object]:
    return (yield values)


def plain(form: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"types": types, "steps": steps}
    exec(  # noqa: S102
        BODY.format(**{"value": "reaction, got", **FORMS[form]}), names
    )
    made: Callable[..., Any] = names["body"]
    return made


def seen(call: Callable[[], object]) -> object:
    """The result of a method for its caller."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001
        names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
        values = error.value if isinstance(error, StopIteration) else error.args
        if "argument" in str(error):
            values = "wrong arguments"  # the text names the class
        return type(error), values, type(error.__context__), type(error.__cause__), names
    return repr(type(result)) if hasattr(result, "send") else result


def state(made: Any) -> object:
    for kind, prefix in (("generator", "gi"), ("coroutine", "cr"), ("asyncgen", "ag")):
        if getattr(inspect, f"is{kind}")(made):
            frame = getattr(made, f"{prefix}_frame")
            others = getattr(made, f"{prefix}_code").co_name, getattr(made, f"{prefix}_running")
            return kind, made.__name__, made.__qualname__, frame and frame.f_lineno, *others
    return None


def driven(function: Callable[..., Any], reactions: list[str], steps: list[Any]) -> list[object]:
    made: Any = function(reactions)
    pending = made
    found = [state(made)]
    for is_on, method, args in steps:
        utracefs.strict(is_on)  # as if its events were on, or off
        if inspect.isasyncgen(made) and method in ("asend", "athrow", "aclose", "__anext__"):
            with contextlib.suppress(TypeError):
                pending = getattr(made, method)(*args)
            continue
        of_step = {"__anext__": "__next__", "asend": "send", "athrow": "throw", "aclose": "close"}
        call = getattr(pending, of_step.get(method, method), None)
        found += [seen(functools.partial(call, *args)) if call else None, state(made)]
    utracefs.strict(True)
    return found


METHODS = st.one_of(
    st.tuples(st.sampled_from(["__next__", "close", "__anext__", "aclose"]), st.just(())),
    st.tuples(st.sampled_from(["send", "asend"]), st.tuples(st.sampled_from([None, None, 7]))),
    st.tuples(
        st.sampled_from(["throw", "athrow"]),
        st.tuples(st.sampled_from([KeyError, GeneratorExit, StopIteration, 5])),
    ),
    st.tuples(st.sampled_from(["send", "throw", "close"]), st.just((1, 2, 3, 4, 5))),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@given(
    st.lists(st.sampled_from(["", "return", "continue", "raise", "stop"]), max_size=4),
    st.lists(st.tuples(st.booleans(), METHODS).map(lambda one: (one[0], *one[1])), max_size=12),
)
@settings(deadline=None)
def test_a_caller_sees_no_difference(form: str, reactions: list[str], steps: list[Any]) -> None:
    before = utracefs.strict(True)
    try:
        function = plain(form)
        once, twice = offline()(function), offline()(offline()(function))
        expected = driven(function, reactions, steps)
        assert driven(once, reactions, steps) == expected
        assert driven(twice, reactions, steps) == expected
        assert current() is None
    finally:
        utracefs.strict(before)
