"""The options of a node about credentials that others have made, the issuer of people's tokens and the join token, and
about the audit of what is done with credentials.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

AUDIT_BYTES_MIN: Final = 8 << 20
LEEWAY_MS_MAX: Final = 60_000
LIFETIME_MS_MIN: Final = 60_000
LIFETIME_MS_MAX: Final = 7 * 86_400_000
REFRESH_MS_MIN: Final = 1_000
REFRESH_MS_MAX: Final = 86_400_000


class CredentialOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of NodeConfig."""

    peers_without_tls: Annotated[
        bool,
        Meta(
            description="With tls_cert: nodes may still connect without TLS, until this node has reached each of them "
            "with it. For the one rolling restart that gives TLS to the nodes of a running cluster."
        ),
    ] = False

    audit_bytes: Annotated[
        int,
        Meta(
            ge=AUDIT_BYTES_MIN,
            description="Maximum bytes of the audit's files in data_dir, half of them for denied calls. The oldest "
            "file of each half, an eighth, is removed for a new one.",
        ),
    ] = 64 << 20

    join_token_file: Annotated[
        str | None,
        Meta(
            description="File with the join token of a new node (keelmq cluster join-token), readable by its owner "
            "only. It is shown once to the node that join names, in place of the administrator's token; the peer "
            "secret that is answered is written to peer_secret_file, which must not exist then."
        ),
    ] = None

    oidc_issuer: Annotated[
        str | None,
        Meta(
            description="Issuer of people's tokens (OpenID Connect), as it stands in their claim iss. They are "
            "known as oidc:NAME then. With oidc_audiences and oidc_keys; the same on all nodes."
        ),
    ] = None
    oidc_audiences: Annotated[
        tuple[str, ...],
        Meta(description="Audiences of which a token of the issuer has to name one in its claim aud."),
    ] = ()
    oidc_keys: Annotated[
        str | None,
        Meta(
            description="JSON Web Key Set of the issuer: an https URL (http on this machine), or a file, which is read "
            "again when it changes."
        ),
    ] = None
    oidc_algorithms: Annotated[
        tuple[str, ...],
        Meta(description="Signatures of tokens that are accepted: RS256, ES256 and EdDSA, or some of them."),
    ] = ("RS256", "ES256", "EdDSA")
    oidc_principal_claim: Annotated[
        str, Meta(description="Claim of the token that names the person, such as sub or email.")
    ] = "sub"
    oidc_groups_claim: Annotated[
        str | None,
        Meta(
            description="Claim that lists the groups of the person, who may also do what the users oidc-group:GROUP "
            "may do. Without it, groups count for nothing."
        ),
    ] = None
    oidc_leeway_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=LEEWAY_MS_MAX,
            description="Difference of the issuer's clock that the times in a token may show; a minute at most.",
        ),
    ] = 5_000
    oidc_max_lifetime_ms: Annotated[
        int,
        Meta(
            ge=LIFETIME_MS_MIN,
            le=LIFETIME_MS_MAX,
            description="Maximum time from iat to exp of a token, which cannot be revoked; a minute to 7 days.",
        ),
    ] = 86_400_000
    oidc_refresh_ms: Annotated[
        int,
        Meta(
            ge=REFRESH_MS_MIN,
            le=REFRESH_MS_MAX,
            description="Time between two fetches of the keys from a URL. For a token with an unknown key they are "
            "fetched sooner, but not before a tenth of that time.",
        ),
    ] = 300_000
