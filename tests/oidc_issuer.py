"""A little issuer of tokens on loopback, with keys of its own, which answers for its key set as a test tells it."""

import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE: Final = "keelmq"
PATH: Final = "/keys"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Mood = Literal["well", "hangs", "drips", "huge", "redirects", "garbage", "fails"]


class SigningKey:
    """A key pair with its id."""

    def __init__(self, kid: str, algorithm: str = "ES256", key: Key | None = None) -> None:
        self.kid, self.algorithm = kid, algorithm
        self.key = key or _KINDS[algorithm]()

    def public(self) -> dict[str, Any]:
        """Return the public key as a member of a key set."""
        of_algorithm: Any = jwt.get_algorithm_by_name(self.algorithm)
        return {**json.loads(of_algorithm.to_jwk(self.key.public_key())), "kid": self.kid, "use": "sig"}

    def pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


_KINDS: Final[dict[str, Any]] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


class TokenIssuer:
    """Signs tokens, and serves its key set at `url`."""

    def __init__(self, keys: Sequence[SigningKey], url: str) -> None:
        self.url = url
        self.name = url.removesuffix(PATH)
        self.keys = list(keys)
        self.members: list[dict[str, Any]] | None = None
        """What stands in the key set instead of `keys`."""
        self.mood: Mood = "well"
        self.asked = 0
        """Number of requests for the key set."""
        self.may_end = threading.Event()

    def key_set(self) -> bytes:
        members = [key.public() for key in self.keys] if self.members is None else self.members
        return json.dumps({"keys": members}).encode()

    def token(
        self, subject: str = "alice", *, key: SigningKey | None = None, now_s: float | None = None, **changes: Any
    ) -> str:
        """Return a token that is valid for a minute from `now_s` on. A claim that is changed to None is left out."""
        signs = key or self.keys[0]
        now = int(time.time() if now_s is None else now_s)
        claims = {"iss": self.name, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 60, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        content = json.dumps(claims).encode()  # whatever it is: the library would not sign claims of wrong types
        return jwt.api_jws.encode(content, signs.key, algorithm=signs.algorithm, headers={"kid": signs.kid})


@contextmanager
def token_issuer(*keys: SigningKey, tls: ssl.SSLContext | None = None) -> Iterator[TokenIssuer]:
    """Run an issuer with these keys, or with one of its own; with `tls` over https."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            try:
                _answer(issuer, self)
            except OSError:
                self.close_connection = True  # the node has hung up

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if tls is None else "https"
    issuer = TokenIssuer(keys or [SigningKey("first")], f"{scheme}://127.0.0.1:{server.server_port}{PATH}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.may_end.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(issuer: TokenIssuer, handler: BaseHTTPRequestHandler) -> None:
    mood = issuer.mood
    if mood == "hangs":
        issuer.may_end.wait()
        return
    if mood == "redirects" and handler.path == PATH:
        handler.send_response(302)
        handler.send_header("Location", f"{issuer.name}/elsewhere")
        handler.end_headers()
        return
    handler.send_response(500 if mood == "fails" else 200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    content = issuer.key_set()
    if mood == "drips":
        for byte in content:
            handler.wfile.write(bytes([byte]))
            if issuer.may_end.wait(0.05):
                return
    elif mood == "huge":
        while not issuer.may_end.is_set():
            handler.wfile.write(content + b" " * 65_536)
    else:
        handler.wfile.write(b'{"keys":[[[' if mood == "garbage" else content)
