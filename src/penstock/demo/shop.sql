-- A small shop: what most businesses have, with the types that they use. Rows come from traffic.py.

CREATE TABLE customers (
    id          uuid PRIMARY KEY,
    email       text NOT NULL UNIQUE,
    name        text NOT NULL,
    country     char(2) NOT NULL,
    birthday    date,
    newsletter  boolean NOT NULL DEFAULT false,
    address     jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE products (
    sku         text PRIMARY KEY,
    title       text NOT NULL,
    description text NOT NULL,                     -- long enough to be stored out of line
    price       numeric(10, 2) NOT NULL CHECK (price > 0),
    weight_kg   double precision,
    stock       integer NOT NULL CHECK (stock >= 0),
    attributes  jsonb NOT NULL DEFAULT '{}',
    thumbnail   bytea,
    updated_at  timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;

CREATE TABLE orders (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id   uuid NOT NULL REFERENCES customers,
    status        text NOT NULL CHECK (status IN ('placed', 'paid', 'packed', 'shipped', 'delivered')),
    total         numeric(12, 2) NOT NULL,
    gift          boolean NOT NULL DEFAULT false,
    note          text,
    placed_at     timestamptz NOT NULL DEFAULT now(),
    delivery_day  date,
    delivery_time time
);

CREATE TABLE order_items (
    order_id  bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line      smallint NOT NULL,
    sku       text NOT NULL REFERENCES products,
    quantity  integer NOT NULL CHECK (quantity > 0),
    price     numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE payments (
    id         uuid PRIMARY KEY,
    order_id   bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    amount     numeric(12, 2) NOT NULL,
    method     text NOT NULL,
    fee_rate   real NOT NULL,
    details    json,
    receipt    bytea,
    paid_at    timestamp NOT NULL
);

CREATE INDEX ON payments (order_id);
