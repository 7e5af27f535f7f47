"""A version to come that does not exist: this tree with one feature level more.

It brings a command (`Remark`), its result (`Remarked`), a field of a command (`Produce.origin`), of a result
(`Produced.weight`) and of a peer message (`Vitals.mood`). `install` adds them, before anything else of the broker is
imported. With `NEXT_VERSION_MISTAKE` it makes a mistake that feature levels are there to prevent, to show the
consequences.
"""

import os
import sys
from typing import Any, Final, Union, get_args

import msgspec

NEXT_VERSION: Final = "9.1.0"
MISTAKE_VARIABLE: Final = "NEXT_VERSION_MISTAKE"
MISTAKES: Final = ("proposes-above-the-level", "encodes-above-the-level", "sends-above-the-level")


def install() -> int:
    """Patch this process; return the level that it knows now."""
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("cluster", "raft", "store")}
    assert not loaded, f"too late: {sorted(loaded)}"
    import store.version

    store.version.VERSION = NEXT_VERSION  # type: ignore[misc]
    from store.features import FEATURES, LEVELS, FeatureLevel

    level = LEVELS[-1].number + 1
    names = frozenset({"Remark", "Remarked", "Produce.origin", "Produced.weight", "Vitals.mood"})
    FEATURES.set_levels([*LEVELS, FeatureLevel(level, NEXT_VERSION, names)], FEATURES.minimum, NEXT_VERSION)
    remark, remarked = _extend_commands()
    _extend_messages()
    _extend_state_machine(remark, remarked)
    _extend_broker(remark, level)
    mistake = os.environ.get(MISTAKE_VARIABLE)
    if mistake:
        _make(mistake)
    return level


def _wider(kind: Any, field: str, hint: type, default: object) -> Any:
    """Return the struct with one more field, which replaces the struct in its module."""
    config = kind.__struct_config__
    more = {} if config.tag is None else {"tag": config.tag}
    wider: Any = msgspec.defstruct(
        kind.__name__, [(field, hint, default)], bases=(kind,), module=kind.__module__, frozen=config.frozen, **more
    )
    setattr(sys.modules[kind.__module__], kind.__name__, wider)
    return wider


def _extend_commands() -> tuple[Any, Any]:
    import store.commands.base as base
    import store.commands.entry as entry
    import store.commands.messages as messages
    import store.commands.transactions as transactions

    wider = _wider(messages.Produce, "origin", str, "")
    remark: Any = msgspec.defstruct(
        "Remark", [("text", str)], bases=(base.CommandBase,), module="store.commands.cluster", frozen=True, tag=250
    )
    known = [wider if kind.__name__ == "Produce" else kind for kind in get_args(entry.Command)]
    union: Any = Union[tuple([*known, remark])]  # noqa: UP007 - made while it runs
    entry._WITH_BATCHES = (wider, transactions.Prepare)  # type: ignore[misc]
    fields: list[Any] = []
    for field in msgspec.structs.fields(entry._Header):
        hint = tuple[union, ...] if field.name == "commands" else field.type
        fields.append((field.name, hint) if field.required else (field.name, hint, field.default))
    header = msgspec.defstruct(
        "_Header",
        fields,
        array_like=True,
        forbid_unknown_fields=True,
        frozen=True,
    )
    entry._decoder = msgspec.msgpack.Decoder(header)
    _wider(messages.Produced, "weight", int, 0)
    remarked: Any = msgspec.defstruct(
        "Remarked",
        [("text", str)],
        module="store.commands.cluster",
        array_like=True,
        forbid_unknown_fields=True,
        frozen=True,
    )
    return remark, remarked


def _extend_messages() -> None:
    import raft.messages as messages

    wider = _wider(messages.Vitals, "mood", str, "fine")
    known = [wider if kind.__name__ == "Vitals" else kind for kind in get_args(messages.Message)]
    messages._decoder = msgspec.msgpack.Decoder(Union[tuple(known)])  # noqa: UP007


def _extend_state_machine(remark: Any, remarked: Any) -> None:
    from store.state.machine import StateMachine

    begin = StateMachine.__init__

    def begin_wider(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._handlers[remark] = lambda command, _at, _: remarked(command.text)

    _replace(StateMachine, "__init__", begin_wider)


def _extend_broker(remark: Any, level: int) -> None:
    """Add `POST /v1/remarks`, and set `Produce.origin` once the level allows it."""
    from aiohttp import web

    from cluster.application import Services
    from cluster.core.core import Core
    from cluster.http.routes import WRITE_ERRORS, Route, json_of
    from cluster.operations.cluster_api import HealthView
    from cluster.security.access import BY_HANDLER
    from store.commands.messages import Produce

    propose, routes = Core.propose, Services._routes

    async def propose_wider(self: Any, command: Any, blocks: Any = (), **more: Any) -> Any:
        if isinstance(command, Produce) and self.raft.feature_levels.in_force >= level:
            command = msgspec.structs.replace(command, origin="next")
        return await propose(self, command, blocks, **more)

    def routes_wider(self: Any) -> list[Route]:
        async def make(request: web.Request) -> web.Response:
            self.core.require_leader()
            applied = await self.core.propose(remark("as of the next version"))
            return web.json_response({"text": applied.result.text, "index": applied.index})

        view = {200: json_of(HealthView)}
        return [
            *routes(self),
            Route("POST", "/v1/remarks", make, "Remark something", view, BY_HANDLER, errors=WRITE_ERRORS),
        ]

    _replace(Core, "propose", propose_wider)
    _replace(Services, "_routes", routes_wider)


def _make(mistake: str) -> None:
    from store.features import FEATURES

    match mistake:
        case "proposes-above-the-level":
            import raft.proposals

            raft.proposals.require_enabled = lambda command, level: None
            _encode_as_is("store.commands.entry")
        case "encodes-above-the-level":
            _encode_as_is("store.commands.entry")
        case "sends-above-the-level":
            _encode_as_is("raft.messages")
        case _:
            raise ValueError(f"{mistake}: one of {', '.join(MISTAKES)}, level {FEATURES.maximum}")


def _encode_as_is(module: str) -> None:
    """Make that module encode as if there were no levels."""

    class AsIs:
        def at(self, value: Any, level: int) -> Any:
            return value

        def knows(self, name: str, level: int) -> bool:
            return True

    _replace(sys.modules[module], "FEATURES", AsIs())


def _replace(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)
