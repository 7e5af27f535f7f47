-- Database of the account service. keelmq creates the outbox table in it too.
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS accounts (
    id TEXT PRIMARY KEY,
    balance INTEGER NOT NULL CHECK (balance >= 0)
);
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL REFERENCES accounts (id),
    yuan INTEGER NOT NULL CHECK (yuan > 0),
    state TEXT NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'paid', 'refused'))
);
CREATE INDEX IF NOT EXISTS orders_by_state ON orders (state, id);
