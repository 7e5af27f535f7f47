"""The service behind a producer group's check_url: it verifies that its cluster asks, and answers from its database.

    (umask 077; head -c 32 /dev/urandom | base64 > webhook_secret)
    keelmqd --webhook-secret-file webhook_secret …
    python -m examples.webhook_service --secrets webhook_secret --database payments.db --port 8090
    curl -X PUT http://127.0.0.1:7081/v1/producer-groups/payments -H 'Content-Type: application/json' \
        -d '{"check_url": "http://127.0.0.1:8090/checks"}'

The local transaction of the producer inserts the id of its half transaction with the outcome `commit` into the table
`payment`, together with its other rows. A check that finds no id inserts `rollback`, so the producer fails if it comes
later: the answer is true from then on, and an answer to a repeated check is the same.
"""

import argparse
import json
import sqlite3
from pathlib import Path
from typing import Final

from aiohttp import web

from keelmq import webhooks
from keelmq.errors import SignatureRefused

CREATE: Final = "CREATE TABLE IF NOT EXISTS payment (id TEXT PRIMARY KEY, outcome TEXT NOT NULL)"
FENCE: Final = "INSERT OR IGNORE INTO payment (id, outcome) VALUES (?, 'rollback')"
SELECT: Final = "SELECT outcome FROM payment WHERE id = ?"
BODY_BYTES_MAX: Final = 64 * 1024 * 1024


class Service:
    def __init__(self, secrets: Path, database: Path) -> None:
        self._secrets = secrets
        self._database = sqlite3.connect(database)
        self._database.execute(CREATE)

    def application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_post("/checks", self.check)
        return application

    async def check(self, request: web.Request) -> web.Response:
        body = await request.read()
        secrets = webhooks.read_secrets(self._secrets)  # each time, so that they can be exchanged without a restart
        try:
            webhooks.verify(body, request.headers.get(webhooks.HEADER), secrets)
        except SignatureRefused as error:
            return web.Response(status=401, text=f"{error.detail}\n")
        return web.json_response({"decision": self._decision(json.loads(body)["transaction_id"])})

    def _decision(self, transaction_id: str) -> str:
        with self._database:
            self._database.execute(FENCE, (transaction_id,))
            return str(self._database.execute(SELECT, (transaction_id,)).fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--secrets", type=Path, required=True, help="copy of the nodes' webhook_secret_file")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8090)
    options = parser.parse_args()
    service = Service(options.secrets, options.database)
    web.run_app(service.application(), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
