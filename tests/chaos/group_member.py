"""Runs a member of a recorded group in a process of its own, which can be killed and stopped like any consumer's:

    python -m tests.chaos.group_member '{"urls": […], …}'

The member ends gracefully at SIGTERM. The effect of each message goes into a database, through the inbox.
"""

import asyncio
import itertools
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    String,
    Table,
    create_engine,
    event,
    func,
    select,
)

import keelmq
from keelmq import inbox, sql, wire
from keelmq.errors import GroupNotFound, MemberNotFound
from keelmq.transport.http1 import HttpResponse
from tests.chaos.broken import BROKEN_VARIABLE, DEFECTS
from tests.chaos.group_records import (
    Assigned,
    Begun,
    Committed,
    Ended,
    GaveBack,
    GivingBack,
    ReadOffsets,
    Recorder,
    SessionOver,
    Spot,
    Started,
    Stood,
)
from tests.chaos.message import number_in
from tests.chaos.workloads.returns import CannotProcess, fails

CONCURRENCY: Final = 3
MAX_WORK_S: Final = 0.06
LONG_SHARE: Final = 0.004
"""Share of calls in which the handler outlasts the session."""
BLOCKING_SHARE: Final = 0.002
"""Share of calls in which the handler blocks the event loop for about a session."""
LATE_FAILURE_SHARE: Final = 0.02
"""Share of calls in which the handler raises after its effect is in the database."""
LOCK_TIMEOUT_S: Final = 60.0
"""Seconds to wait for the database, since another member may be stopped while it writes."""


class MemberPlan(msgspec.Struct, frozen=True):
    """The settings of a member; `seed` decides what its handlers do."""

    name: str
    """Name of the member in its records."""
    urls: list[str]
    group: str
    topics: list[str]
    session_timeout_ms: int
    records: str
    database: str
    seed: str
    ordered: bool
    plain: bool
    """True when the handler is a plain function, which runs in a thread."""
    uvloop: bool


effects = Table(
    "effects",
    sql.metadata,
    Column("id", Integer, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("message_id", String(128), nullable=False),
)
"""Table of effects. No constraint prevents a second effect of a message: that is the task of the inbox."""


def open_database(path: str) -> Engine:
    """Open the database and make missing tables. Committed data outlives the process, but not the machine."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": LOCK_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")

    with engine.begin() as connection:
        sql.metadata.create_all(connection, tables=[inbox.table, effects])
    return engine


def effects_by_number(path: str) -> dict[int, int]:
    """Return how often the effect of each message is in the database."""
    engine = open_database(path)
    try:
        with engine.connect() as connection:
            rows = connection.execute(select(effects.c.number, func.count()).group_by(effects.c.number))
            return {number: count for number, count in rows}
    finally:
        engine.dispose()


class RecordingConnection(keelmq.Connection):
    """Connection that records one member's requests to the broker and the answers."""

    def __init__(self, urls: list[str], member: str, recorder: Recorder) -> None:
        super().__init__(urls)
        self._member = member
        self._recorder = recorder

    async def call(self, method: str, target: str, **options: Any) -> HttpResponse:
        what = target.partition("?")[0].rpartition("/")[2]
        if not target.startswith("/v1/groups/"):
            return await super().call(method, target, **options)
        body, sent_at_s = options.get("body", b""), time.monotonic()
        gives_back = (method, what) == ("POST", "retries")
        if gives_back:
            spots = _spots(msgspec.json.decode(body)["messages"])
            self._recorder.write(GivingBack(member=self._member, at_s=sent_at_s, spots=spots))
        try:
            response = await super().call(method, target, **options)
        except (MemberNotFound, GroupNotFound):
            if what == "heartbeat":
                self._recorder.write(SessionOver(member=self._member, at_s=time.monotonic()))
            raise
        at_s = time.monotonic()
        if gives_back:
            self._recorder.write(GaveBack(member=self._member, at_s=at_s, spots=spots))
        elif (method, what) in (("POST", "members"), ("POST", "heartbeat")):
            self._on_membership(wire.decode(wire.Membership, response.body, wire.JSON), sent_at_s, at_s)
        elif (method, what) == ("PUT", "offsets"):
            request = msgspec.json.decode(body)
            offsets, generation = _spots(request["offsets"]), request["generation"]
            committed = Committed(
                member=self._member, at_s=at_s, sent_at_s=sent_at_s, generation=generation, offsets=offsets
            )
            self._recorder.write(committed)
        elif (method, what) == ("GET", "offsets"):
            offsets = _spots(msgspec.json.decode(response.body)["offsets"])
            self._recorder.write(ReadOffsets(member=self._member, at_s=at_s, sent_at_s=sent_at_s, offsets=offsets))
        return response

    def _on_membership(self, membership: wire.Membership, sent_at_s: float, at_s: float) -> None:
        places = [(each.topic, each.queue) for each in membership.assignment]
        self._recorder.write(
            Assigned(
                member=self._member, at_s=at_s, sent_at_s=sent_at_s, generation=membership.generation, places=places
            )
        )


def _spots(entries: list[dict[str, Any]]) -> list[Spot]:
    return [(each["topic"], each["queue"], each["offset"]) for each in entries]


class Member:
    """A member whose handler records each call and applies each message's effect through the inbox."""

    def __init__(self, plan: MemberPlan) -> None:
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._recorder = Recorder(Path(plan.records))
        self._engine = open_database(plan.database)
        self._calls = itertools.count()

    async def run(self) -> None:
        plan = self._plan
        connection = RecordingConnection(plan.urls, plan.name, self._recorder)
        consumer = keelmq.Consumer(
            plan.urls,
            plan.group,
            plan.topics,
            self._handle_plainly if plan.plain else self._handle,
            start="earliest",
            ordered=plan.ordered,
            on_error="give_back",
            concurrency=CONCURRENCY,
            wait_ms=2_000,
            session_timeout_ms=plan.session_timeout_ms,
            connection=connection,
        )
        slots = CONCURRENCY if plan.plain else 1
        started = Started(
            member=self._plan.name, at_s=time.monotonic(), session_timeout_ms=plan.session_timeout_ms, slots=slots
        )
        self._recorder.write(started)
        try:
            await consumer.run()
        except keelmq.KeelMQError as error:
            if not error.retryable:
                raise
            logging.warning("the member ends: %s", error)
        finally:
            connection.close()

    async def _handle(self, message: keelmq.ReceivedMessage) -> None:
        call, number = self._begin(message)
        done = False
        try:
            _fail_if_it_must(number, message)
            await sql.run(self._engine, lambda connection: self._apply(connection, message, number))
            await asyncio.sleep(self._work_s())
            if self._rng.random() < BLOCKING_SHARE:
                self._stand()
            self._fail_late(message)
            done = True
        finally:
            self._end(call, done)

    def _handle_plainly(self, message: keelmq.ReceivedMessage) -> None:
        call, number = self._begin(message)
        done = False
        try:
            _fail_if_it_must(number, message)
            with self._engine.begin() as connection:
                self._apply(connection, message, number)
            time.sleep(self._work_s())
            self._fail_late(message)
            done = True
        finally:
            self._end(call, done)

    def _begin(self, message: keelmq.ReceivedMessage) -> tuple[int, int]:
        call, number, origin = next(self._calls), number_in(message.body), message.origin
        begun = Begun(
            member=self._plan.name,
            at_s=time.monotonic(),
            call=call,
            topic=message.topic,
            queue=message.queue,
            offset=message.offset,
            message_id=message.message_id,
            number=-1 if number is None else number,
            attempt=message.attempt,
            origin=None if origin is None else (origin.topic, origin.queue, origin.offset),
        )
        self._recorder.write(begun)
        return call, begun.number

    def _end(self, call: int, done: bool) -> None:
        self._recorder.write(Ended(member=self._plan.name, at_s=time.monotonic(), call=call, done=done))

    def _apply(self, connection: Connection, message: keelmq.ReceivedMessage, number: int) -> None:
        if inbox.first_time(connection, self._plan.group, message):
            connection.execute(effects.insert().values(number=number, message_id=message.message_id))

    def _work_s(self) -> float:
        if self._rng.random() < LONG_SHARE:
            return self._plan.session_timeout_ms / 1000 * self._rng.uniform(1.0, 1.5)
        return self._rng.uniform(0, MAX_WORK_S)

    def _stand(self) -> None:
        from_s = time.monotonic()
        time.sleep(self._plan.session_timeout_ms / 1000 * self._rng.uniform(0.8, 1.5))
        self._recorder.write(Stood(member=self._plan.name, at_s=time.monotonic(), from_s=from_s))

    def _fail_late(self, message: keelmq.ReceivedMessage) -> None:
        if message.attempt == 0 and self._rng.random() < LATE_FAILURE_SHARE:
            raise CannotProcess("after its effect")


def _fail_if_it_must(number: int, message: keelmq.ReceivedMessage) -> None:
    if fails(number, message.attempt):
        raise CannotProcess(f"message {number:x}")


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=MemberPlan)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if (defect := os.environ.get(BROKEN_VARIABLE)) is not None:
        DEFECTS[defect].install()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if plan.uvloop else None) as runner:
        runner.run(Member(plan).run())


if __name__ == "__main__":
    main()
