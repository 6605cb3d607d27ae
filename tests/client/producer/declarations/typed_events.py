"""Types of events that annotations define. Each line with `type: ignore` has an error, no other line has one:
mypy reports both, pyright in test_defining.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import utracefs


@utracefs.define
def http_request(
    status: utracefs.u16, usec: float, path: str, ok: bool, user: Annotated[str, 20], short: utracefs.f32
) -> None:
    """One request."""


if http_request:
    http_request.emit(200, 1, path="/", ok=True, user="me", short=1.5)
http_request.emit("200", 1.5, "/", True, "me", 1.5)  # type: ignore[arg-type]
http_request.emit(200, "1.5", "/", True, "me", 1.5)  # type: ignore[arg-type]
http_request.emit(200, 1.5, b"/", True, "me", 1.5)  # type: ignore[arg-type]
http_request.emit(200, 1.5, "/", "yes", "me", 1.5)  # type: ignore[arg-type]
http_request.emit(200, 1.5, "/", True, 7, 1.5)  # type: ignore[arg-type]
http_request.emit(200, 1.5, "/", True, "me", None)  # type: ignore[arg-type]
http_request.emit(200, 1.5, "/", True, "me")  # type: ignore[call-arg]
http_request.emit(200, 1.5, "/", True, "me", 1.5, 7)  # type: ignore[call-arg]
http_request.emit(200, 1.5, "/", True, "me", shorter=1.5)  # type: ignore[call-arg]
http_request.emit(200.5, 1.5, "/", True, "me", 1.5)  # type: ignore[arg-type]
name: str = http_request.name
enabled: bool = not http_request and http_request.enabled
event: utracefs.Event = http_request
count: str = http_request.lost  # type: ignore[assignment]


@utracefs.define(name="ordered", persist=True)
def shop_order(*, number: int, raw: bytes) -> None: ...


shop_order.emit(number=7, raw=b"")
shop_order.emit(number=7.5, raw=b"")  # type: ignore[arg-type]
shop_order.emit(7, b"")  # type: ignore[call-arg]


@utracefs.define
def row(numbers: Annotated[Sequence[utracefs.u32], 4], pair: Annotated[tuple[float, ...], 2]) -> None: ...


row.emit([1, 2, 3, 4], (1, 2.5))
row.emit(numbers=b"abcd", pair=(1.5, 2))
row.emit(["1"], (1.5, 2))  # type: ignore[list-item]
row.emit(5, (1.5, 2))  # type: ignore[arg-type]
row.emit([1, 2, 3, 4], ("1",))  # type: ignore[arg-type]


@utracefs.define
def payment(order: utracefs.u64, request_id: str = "", *, retries: utracefs.u8 = 0) -> None: ...


payment.emit(1)
payment.emit(1, "a", retries=2)
payment.emit()  # type: ignore[call-arg]
payment.emit(1, 2)  # type: ignore[arg-type]


@utracefs.define
def shop_request(route: str, user: str = "") -> None: ...


def response(*, status: utracefs.u16 = 0, size: utracefs.u32 = 0) -> None: ...


request_span = utracefs.span(shop_request, response)
with request_span("/") as running:
    running.set(status=200)
    running.set(status="200")  # type: ignore[arg-type]
    running.set(stats=200)  # type: ignore[call-arg]
    running.set(size=1, status=200)
with request_span("/", user="me"), request_span("/", parent_id=7):
    pass
request_span(5)  # type: ignore[call-overload]
request_span(rute="/")  # type: ignore[call-overload]


@request_span
def priced(number: int) -> int:
    return number


price: str = priced(5)  # type: ignore[assignment]
with utracefs.span("shop.order", "u16 status", order=7) as ordering:
    ordering.set(status=200)
with utracefs.span("shop_order u64 order", response)(7) as answering:
    answering.set(status="200")  # type: ignore[arg-type]


class Login(NamedTuple):
    user: str


login = utracefs.define(Login)
login.emit("me")
login.emit(7)  # type: ignore[arg-type]


@dataclass
class Logout:
    user: str
    usec: float


logout = utracefs.define(Logout, multi_format=True)
logout.emit("me", usec=7)
logout.emit(user="me")  # type: ignore[call-arg]


@utracefs.define(nam="x")  # type: ignore[call-overload, untyped-decorator]
def misspelled(number: int) -> None: ...


string = utracefs.event("string u16 status; struct double usec 8")
string.emit(200, 1.5)
