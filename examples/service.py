"""A service with a span for each request, and its log lines joined with it by the request id.

uvicorn --workers 2 service:app
"""

import asyncio
import logging

from fastapi import FastAPI

import utracefs
from utracefs.asgi import Middleware

logging.getLogger().addHandler(utracefs.LoggingHandler(fields=["request_id"]))
log = logging.getLogger("service")
app = FastAPI()
app.add_middleware(Middleware)


@utracefs.define
def priced(seconds: float, request_id: str = "") -> None:
    """A price was found; the request id is by default that of the context."""


@app.get("/items/{item}")
async def get_item(item: int) -> dict[str, int]:
    with utracefs.span("shop.price", item=item):
        await asyncio.sleep(0.001)
    priced.emit(0.001)
    log.warning("item %d", item)
    return {"item": item}
