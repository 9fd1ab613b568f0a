-- The shop of shop.sql for MariaDB and MySQL. Foreign keys do not cascade: the binlog would not have what they do.

CREATE TABLE customers (
    id          char(36) PRIMARY KEY,
    email       varchar(200) NOT NULL UNIQUE,
    name        varchar(200) NOT NULL,
    country     char(2) NOT NULL,
    birthday    date,
    newsletter  boolean NOT NULL DEFAULT false,
    address     json NOT NULL,
    created_at  timestamp(6) NOT NULL DEFAULT now(6)
);

CREATE TABLE products (
    sku         varchar(20) PRIMARY KEY,
    title       varchar(200) NOT NULL,
    description text NOT NULL,
    price       decimal(10, 2) NOT NULL CHECK (price > 0),
    weight_kg   double,
    stock       int NOT NULL CHECK (stock >= 0),
    attributes  json NOT NULL,
    thumbnail   blob,
    updated_at  timestamp(6) NOT NULL DEFAULT now(6)
);

CREATE TABLE orders (
    id            bigint unsigned AUTO_INCREMENT PRIMARY KEY,
    customer_id   char(36) NOT NULL,
    status        enum('placed', 'paid', 'packed', 'shipped', 'delivered') NOT NULL,
    total         decimal(12, 2) NOT NULL,
    gift          boolean NOT NULL DEFAULT false,
    note          text,
    placed_at     timestamp(6) NOT NULL DEFAULT now(6),
    delivery_day  date,
    delivery_time time,
    FOREIGN KEY (customer_id) REFERENCES customers (id)
);

CREATE TABLE order_items (
    order_id  bigint unsigned NOT NULL,
    line      smallint NOT NULL,
    sku       varchar(20) NOT NULL,
    quantity  int NOT NULL CHECK (quantity > 0),
    price     decimal(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line),
    FOREIGN KEY (order_id) REFERENCES orders (id),
    FOREIGN KEY (sku) REFERENCES products (sku)
);

CREATE TABLE payments (
    id         char(36) PRIMARY KEY,
    order_id   bigint unsigned NOT NULL,
    amount     decimal(12, 2) NOT NULL,
    method     varchar(20) NOT NULL,
    fee_rate   float NOT NULL,
    details    json,
    receipt    varbinary(200),
    paid_at    datetime(6) NOT NULL,
    FOREIGN KEY (order_id) REFERENCES orders (id)
);
