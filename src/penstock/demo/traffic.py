"""Traffic for the shop: customers order, pay, get their parcels, or change their minds.

Seeded: each worker draws from its own random numbers and works on its own orders, so its sequence of actions repeats.
Every action is one transaction. Workers share customers and products; rows of products are locked in the order of their
keys, so that workers never deadlock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from penstock.demo.shop_connection import Connect, ShopConnection

CUSTOMERS, PRODUCTS = 400, 150
FIRST_NAMES = ("Ada", "Björn", "Chloé", "Dmitri", "Elif", "Femi", "Giulia", "Hana", "Ines", "Jürgen", "Kofi", "Łucja")
LAST_NAMES = ("Okafor", "Müller", "Rossi", "Novák", "Yılmaz", "Tanaka", "Dubois", "O'Brien", "García", "Nowak", "Berg")
COUNTRIES = ("DE", "FR", "IT", "ES", "PL", "TR", "JP", "NG", "IE", "SE")
THINGS = ("Lamp", "Kettle", "Backpack", "Notebook", "Desk", "Bicycle bell", "Headphones", "Tea", "Blanket", "Chess set")
COLOURS = ("red", "blue", "green", "black", "white", "oak", "brass")
NOTES = (None, "", "Please ring twice", "C'est un cadeau 🎁", "Leave it with the neighbours, 3rd floor")
NEXT_STATUS = {"placed": "paid", "paid": "packed", "packed": "shipped", "shipped": "delivered"}
OPEN_ORDERS = 150  # of one worker; beyond that it works orders off before it places new ones


@dataclass
class Shop:
    """What is for sale, and to whom: filled once, read by every worker."""

    customers: list[UUID]
    skus: list[str]


@dataclass
class Order:
    id: int
    status: str
    total: Decimal


def fill(connection: ShopConnection, seed: int) -> Shop:
    """Insert the first customers and products, in one transaction each."""
    random = Random(seed)
    customers = [_customer(random, number) for number in range(CUSTOMERS)]
    products = [_product(random, number) for number in range(PRODUCTS)]
    with connection.transaction():
        connection.run_each(
            "INSERT INTO customers (id, email, name, country, birthday, newsletter, address)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            customers,
        )
    with connection.transaction():
        connection.run_each(
            "INSERT INTO products (sku, title, description, price, weight_kg, stock, attributes, thumbnail)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            products,
        )
    return Shop([row[0] for row in customers], [row[0] for row in products])


@dataclass
class Worker:
    """One connection's share of the traffic. `changes` counts the row changes it has committed."""

    connection: ShopConnection
    shop: Shop
    random: Random
    changes: int = 0
    open: list[Order] = field(default_factory=list)
    delivered: list[Order] = field(default_factory=list)

    def act(self) -> None:
        """One transaction of a kind that real shops see, in roughly their proportions."""
        choices: list[tuple[Callable[[], int], int]] = [
            (self._place, 30 if len(self.open) < OPEN_ORDERS else 0),
            (self._progress, 50 if self.open else 0),
            (self._cancel, 5 if self.open else 0),
            (self._reprice, 6),
            (self._edit_customer, 6),
            (self._restock, 2),
            (self._purge, 1 if len(self.delivered) > 20 else 0),
        ]
        action = self.random.choices([kind for kind, _ in choices], [weight for _, weight in choices])[0]
        with self.connection.transaction():
            made = action()
        self.changes += made

    def _place(self) -> int:
        random = self.random
        skus = sorted(random.sample(self.shop.skus, random.randint(1, 4)))
        lines = [(number, sku, random.randint(1, 3)) for number, sku in enumerate(skus, 1)]
        prices: list[Decimal] = []
        for _, sku, quantity in lines:
            self._run(
                "UPDATE products SET stock = greatest(stock - %s, 0), updated_at = now() WHERE sku = %s",
                (quantity, sku),
            )
            prices.append(self.connection.one("SELECT price FROM products WHERE sku = %s", (sku,))[0])
        total = sum((price * quantity for price, (_, _, quantity) in zip(prices, lines, strict=True)), Decimal(0))
        order = self.connection.insert_order(
            "INSERT INTO orders (customer_id, status, total, gift, note) VALUES (%s, 'placed', %s, %s, %s)",
            (random.choice(self.shop.customers), total, random.random() < 0.1, random.choice(NOTES)),
        )
        for (number, sku, quantity), price in zip(lines, prices, strict=True):
            self._run(
                "INSERT INTO order_items (order_id, line, sku, quantity, price) VALUES (%s, %s, %s, %s, %s)",
                (order, number, sku, quantity, price),
            )
        self.open.append(Order(order, "placed", total))
        return 1 + 2 * len(lines)

    def _progress(self) -> int:
        order = self.random.choice(self.open)
        order.status = NEXT_STATUS[order.status]
        if order.status == "paid":
            self._pay(order)
        if order.status == "shipped":
            day = date(2026, 1, 1) + timedelta(days=self.random.randrange(365))
            self._run(
                "UPDATE orders SET status = 'shipped', delivery_day = %s, delivery_time = %s WHERE id = %s",
                (day, clock(self.random.randint(8, 19), self.random.choice((0, 30))), order.id),
            )
        else:
            self._run("UPDATE orders SET status = %s WHERE id = %s", (order.status, order.id))
        if order.status == "delivered":
            self.open.remove(order)
            self.delivered.append(order)
        return 2 if order.status == "paid" else 1

    def _pay(self, order: Order) -> None:
        random = self.random
        method = random.choice(("card", "transfer", "invoice"))
        details = json.dumps({"last4": f"{random.randrange(10_000):04}", "3ds": random.random() < 0.7})
        self._run(
            "INSERT INTO payments (id, order_id, amount, method, fee_rate, details, receipt, paid_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                _uuid(random),
                order.id,
                order.total,
                method,
                random.choice((0.0, 0.014, 0.029)),
                details if method == "card" else None,
                random.randbytes(24) if method != "invoice" else None,
                datetime(2026, 1, 1) + timedelta(microseconds=random.randrange(31_536_000_000_000)),
            ),
        )

    def _cancel(self) -> int:
        order = self.open.pop(self.random.randrange(len(self.open)))
        return self._delete([order])

    def _purge(self) -> int:
        """Have old orders leave the shop, a few at a time."""
        old, self.delivered = self.delivered[:10], self.delivered[10:]
        return self._delete(old)

    def _delete(self, orders: list[Order]) -> int:
        among = ", ".join(["%s"] * len(orders))
        return sum(
            self._run(f"DELETE FROM {table} WHERE {column} IN ({among})", [order.id for order in orders])
            for table, column in (("payments", "order_id"), ("order_items", "order_id"), ("orders", "id"))
        )

    def _reprice(self) -> int:
        factor = Decimal(self.random.choice(("0.90", "0.95", "1.05", "1.10")))
        return self._run(
            "UPDATE products SET price = greatest(round(price * %s, 2), 0.01), updated_at = now() WHERE sku = %s",
            (factor, self.random.choice(self.shop.skus)),
        )

    def _edit_customer(self) -> int:
        random = self.random
        return self._run(
            "UPDATE customers SET address = %s, newsletter = NOT newsletter WHERE id = %s",
            (json.dumps(_address(random)), random.choice(self.shop.customers)),
        )

    def _restock(self) -> int:
        skus = sorted(self.random.sample(self.shop.skus, 10))
        return sum(
            self._run("UPDATE products SET stock = stock + 50, updated_at = now() WHERE sku = %s", (sku,))
            for sku in skus
        )

    def _run(self, statement: str, values: Sequence[Any]) -> int:
        return self.connection.run(statement, values)


class Traffic:
    """Several workers at a common pace, from `start` to `stop`."""

    def __init__(
        self, connect: Connect, shop: Shop, *, seed: int, workers: int = 4, actions_per_second: float = 160.0
    ) -> None:
        self._workers = [Worker(connect(), shop, Random(f"{seed}/{number}")) for number in range(workers)]
        self._pause = workers / actions_per_second
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in self._workers]

    @property
    def changes(self) -> int:
        return sum(worker.changes for worker in self._workers)

    @property
    def alive(self) -> bool:
        """Whether every worker works."""
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when every transaction has ended. Raises what made a worker fail."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for worker in self._workers:
            worker.connection.close()
        if self._failures:
            raise self._failures[0]

    def _work(self, worker: Worker) -> None:
        due = time.monotonic()
        try:
            while not self._stop.is_set():
                worker.act()
                due = max(due + self._pause, time.monotonic() - 1.0)
                self._stop.wait(max(due - time.monotonic(), 0.0))
        except worker.connection.failures as error:
            self._failures.append(error)


def _customer(random: Random, number: int) -> tuple[Any, ...]:
    first, last = random.choice(FIRST_NAMES), random.choice(LAST_NAMES)
    birthday = date(1940, 1, 1) + timedelta(days=random.randrange(24_000)) if random.random() < 0.8 else None
    return (
        _uuid(random),
        f"{first}.{last}.{number}@example.com".lower(),
        f"{first} {last}",
        random.choice(COUNTRIES),
        birthday,
        random.random() < 0.3,
        json.dumps(_address(random)),
    )


def _product(random: Random, number: int) -> tuple[Any, ...]:
    colour, thing = random.choice(COLOURS), random.choice(THINGS)
    sentence = f"This {colour} {thing.lower()} lasts; you will not need another. "
    return (
        f"{thing[:3].upper()}-{number:04}",
        f"{thing}, {colour}",
        sentence * random.randint(1, 60),
        Decimal(random.randint(199, 49_999)) / 100,
        round(random.uniform(0.05, 25), 3) if random.random() < 0.9 else None,
        random.randint(50, 500),
        json.dumps({"colour": colour, "tags": random.sample(COLOURS, 2), "rating": round(random.uniform(1, 5), 1)}),
        random.randbytes(random.randint(16, 64)) if random.random() < 0.7 else None,
    )


def _address(random: Random) -> dict[str, Any]:
    return {
        "street": f"{random.choice(LAST_NAMES)}straße {random.randint(1, 200)}",
        "zip": f"{random.randrange(100_000):05}",
        "geo": [round(random.uniform(35, 60), 5), round(random.uniform(-10, 40), 5)],
    }


def _uuid(random: Random) -> UUID:
    return UUID(int=random.getrandbits(128), version=4)
