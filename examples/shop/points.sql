-- Database of the points service. keelmq creates the inbox table in it too.
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS points (
    account TEXT PRIMARY KEY,
    points INTEGER NOT NULL DEFAULT 0
);
-- One row each time points were added. Deliberately without a unique order_id: keeping an order from being applied twice
-- is the inbox's task, and the demo counts the rows to see whether it did.
CREATE TABLE IF NOT EXISTS ledger (
    number INTEGER PRIMARY KEY,
    order_id TEXT NOT NULL,
    account TEXT NOT NULL,
    points INTEGER NOT NULL
);
