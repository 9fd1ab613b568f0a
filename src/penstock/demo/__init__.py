"""An embedded Postgres with a small shop and live traffic."""
