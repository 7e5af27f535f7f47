"""An option of a node as help, documentation and the three sources of the configuration know it."""

from typing import Any, Final, NamedTuple

ENVIRONMENT_PREFIX: Final = "KEELMQ_"
CLIENT_VARIABLES: Final = frozenset(
    {
        "KEELMQ_CONTEXT",
        "KEELMQ_SERVERS",
        "KEELMQ_TOKEN",
        "KEELMQ_TOKEN_FILE",
        "KEELMQ_CA_FILE",
        "KEELMQ_CERTIFICATE_FILE",
        "KEELMQ_KEY_FILE",
    }
)
"""Variables of the SDK and the `keelmq` command, which are not misspelt options of this node."""


class Option(NamedTuple):
    """One option, which is a field of NodeConfig, as help and documentation show it."""

    name: str
    type: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        # One --peer per node reads better than one long list.
        name = self.name.removesuffix("s") if self.is_list else self.name
        return "--" + name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """True when the option is given without a value on the command line."""
        return isinstance(self.default, bool)

    @property
    def is_list(self) -> bool:
        """True when the option is repeated for each item on the command line, and separated by commas in a variable."""
        return isinstance(self.default, tuple)
