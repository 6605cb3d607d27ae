"""A busy shop: an example of an application with utracefs events.

    customers (threads) ─orders─▶ counter (threads) ─bills─▶ cashier (another process)
                                    │                       │
                                    ▼                       ▼
                               shop_order, shop_stock  shop_payment

Orders arrive, the counter takes goods off the shelf and refills it, the cashier charges cards and is
sometimes refused. Each step has an event. The program does not depend on a consumer: without a daemon it runs
the same and `if event:` costs next to nothing.

    utracefs record -o trace.dat -- python examples/shop.py
    utracefs report trace.dat

It ends after ORDERS orders, and prints what it sold.
"""

import argparse
import multiprocessing
import queue
import random
import threading
import time
from multiprocessing.connection import Connection

import utracefs

ORDERS = 12_000
CUSTOMERS = 4
CLERKS = 3
BATCH = 50
"""Bills sent to the cashier together."""

PRICES_CENT = {"apple": 40, "bread": 290, "cheese": 620, "coffee": 890, "Brötchen": 55, "soap": 210}
SHELF = 400
REFILL_BELOW = 40

order_event = utracefs.event(
    "shop_order u32 order; u16 customer; u8 pieces; char[12] channel; __rel_loc char[] article"
)
stock_event = utracefs.event("shop_stock __rel_loc char[] article; s32 change; s32 left")
payment_event = utracefs.event(
    "shop_payment u32 order; s64 amount_cent; u64 took_ns; s32 status; __rel_loc char[] card"
)

Order = tuple[int, str, int]
"""Number, article, pieces; fewer than 0 pieces are brought back."""
Bill = tuple[int, int]
"""Order number, cents; negative when money goes back."""


class Shelf:
    """Stock of each article."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = dict.fromkeys(PRICES_CENT, SHELF)

    def take(self, article: str, pieces: int) -> None:
        """Off the shelf, or back onto it; filled up when little is left."""
        with self._lock:
            self._change(article, -pieces)
            if self._left[article] < REFILL_BELOW:
                self._change(article, SHELF - self._left[article])

    def _change(self, article: str, change: int) -> None:
        self._left[article] += change
        if stock_event:
            stock_event.emit(article, change, self._left[article])


def customer(number: int, count: int, orders: "queue.SimpleQueue[Order | None]") -> None:
    """Order `count` times; one in thirty brings something back."""
    chance = random.Random(number)
    articles = list(PRICES_CENT)
    for nth in range(count):
        order = number * ORDERS + nth
        pieces = chance.randint(1, 9)
        article = chance.choice(articles)
        if order_event:
            order_event.emit(order, number, pieces, "web" if number % 2 else "counter", article)
        orders.put((order, article, -pieces if chance.random() < 1 / 30 else pieces))
        if nth % 100 == 99:
            time.sleep(0.05)  # looks around


def clerk(orders: "queue.SimpleQueue[Order | None]", shelf: Shelf, bills: "queue.SimpleQueue[Bill]") -> None:
    """Hand out goods and write bills until there are no orders any more."""
    while (order := orders.get()) is not None:
        number, article, pieces = order
        shelf.take(article, pieces)
        bills.put((number, pieces * PRICES_CENT[article]))


def cashier(till: Connection, seed: int) -> None:
    """The other process: charge cards, batch by batch, until an empty one; then report the sum."""
    chance = random.Random(seed)
    taken = refused = 0
    while batch := till.recv():
        for order, amount_cent in batch:
            began_ns = time.perf_counter_ns()
            card = f"**** {chance.randrange(10_000):04d}"
            status = -1 if amount_cent > 0 and chance.random() < 0.02 else 0
            if status:
                refused += 1
            else:
                taken += amount_cent
            if payment_event:
                payment_event.emit(order, amount_cent, time.perf_counter_ns() - began_ns, status, card)
    till.send((taken, refused))


def main() -> None:
    parser = argparse.ArgumentParser(description="A shop with events.")
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"how many (default: {ORDERS})")
    count = max(parser.parse_args().orders // CUSTOMERS, 1)

    till, far_end = multiprocessing.Pipe()
    process = multiprocessing.Process(target=cashier, args=(far_end, 7), name="cashier")
    process.start()
    far_end.close()

    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    bills: queue.SimpleQueue[Bill] = queue.SimpleQueue()
    shelf = Shelf()
    clerks = [threading.Thread(target=clerk, args=(orders, shelf, bills)) for _ in range(CLERKS)]
    customers = [threading.Thread(target=customer, args=(n, count, orders)) for n in range(CUSTOMERS)]
    for thread in clerks + customers:
        thread.start()

    batch: list[Bill] = []
    for _ in range(count * CUSTOMERS):
        batch.append(bills.get())
        if len(batch) == BATCH:
            till.send(batch)
            batch = []
    if batch:
        till.send(batch)
    for thread in customers:
        thread.join()
    for _ in clerks:
        orders.put(None)
    for thread in clerks:
        thread.join()
    till.send([])
    taken, refused = till.recv()
    process.join()
    print(f"{count * CUSTOMERS} orders, {taken / 100:.2f} in the till, {refused} cards refused")


if __name__ == "__main__":
    main()
