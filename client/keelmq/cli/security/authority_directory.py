"""The directory of an authority: `ca.crt` and `ca.key`, and a certificate with its key for each name that it signed."""

from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from keelmq.cli.security.certificate_files import (
    CERTIFICATE_MODE,
    KEY_MODE,
    NewFile,
    create,
    directory_for,
    is_taken,
    read,
    replace,
)
from keelmq.cli.security.certificates import (
    OWN_HOSTS,
    Authority,
    Subject,
    certificate_pem,
    end_of,
    facts_of,
    issue,
    key_pem,
    load_authority,
    load_certificates,
    load_key,
    make_authority,
    make_key,
)
from keelmq.errors import Conflict

AUTHORITY: Final = "ca"
"""Name of the authority's files, without their endings."""
NODE_SCHEME: Final = "keelmq:"


class Made(NamedTuple):
    """A certificate that is on the disk, with its key."""

    certificate: x509.Certificate
    certificate_file: Path
    key_file: Path
    renewed: bool
    """True if the key was there before."""
    warnings: tuple[str, ...] = ()


def make_authority_in(directory: Path, name: str, days: int, now: datetime) -> Made:
    """Make an authority, and the directory if it is missing. After an error the directory is as it was.

    Raises InvalidRequest for the name, Conflict (`file_exists`) when there is an authority or a part of one, and
    KeelMQError (`file_unusable`).
    """
    certificate_file, key_file = _files(directory, AUTHORITY)
    for file in (key_file, certificate_file):
        if is_taken(file):
            raise Conflict(
                "file_exists",
                f"{file} exists and is not overwritten, because what it signed would be worth nothing; make another "
                "authority in another directory, or remove the file if it never signed anything",
            )
    made = make_authority(name, days, now)
    with directory_for(directory):
        _create(certificate_file, made.certificate, key_file, key_pem(made.key))
    return Made(made.certificate, certificate_file, key_file, renewed=False)


def issue_in(directory: Path, stem: str, subject: Subject, days: int, now: datetime) -> Made:
    """Make a key and a certificate for it, in the files `stem`.key and `stem`.crt. After an error neither exists.

    Raises Conflict (`file_exists`) when one of the files is there, and KeelMQError (`file_unusable`), also when the
    authority cannot sign.
    """
    certificate_file, key_file = _files(directory, stem)
    if is_taken(certificate_file) and is_taken(key_file):
        raise Conflict(
            "file_exists",
            f"{certificate_file} exists and is not overwritten; give --renew for a new certificate of the same key",
        )
    if is_taken(key_file):
        raise Conflict(
            "file_exists",
            f"{key_file} exists without a certificate, as an interrupted command leaves it; give --renew to make the "
            "certificate for this key",
        )
    if is_taken(certificate_file):
        raise Conflict(
            "file_exists",
            f"{certificate_file} exists without its key {key_file.name}; put the key beside it and give --renew, or "
            "remove the file",
        )
    authority = _authority_of(directory, now)
    key = make_key()
    ends, cut = end_of(authority, now, days)
    certificate = issue(authority, subject, key, now, ends)
    _create(certificate_file, certificate, key_file, key_pem(key))
    return Made(certificate, certificate_file, key_file, renewed=False, warnings=_warnings(ends, cut))


def renew_in(directory: Path, stem: str, subject: Subject, days: int, now: datetime) -> Made:
    """Replace `stem`.crt by a new certificate for the key in `stem`.key, which stays. At every moment, also after a
    crash, the two belong together. A certificate that is missing beside its key is made.

    Raises KeelMQError (`file_unusable`) when a file cannot be used or the authority cannot sign, and Conflict
    (`names_differ`) when the former certificate is of somebody else. After an error nothing has changed, or only the
    sync of the directory has failed, and a power loss may bring the former certificate back.
    """
    certificate_file, key_file = _files(directory, stem)
    key = load_key(read(key_file, when_missing="without --renew the command makes key and certificate"), key_file)
    replaces = is_taken(certificate_file)
    if replaces:
        _require_same_name(certificate_file, subject)
    authority = _authority_of(directory, now)
    ends, cut = end_of(authority, now, days)
    certificate = issue(authority, subject, key, now, ends)
    file = NewFile(certificate_file, certificate_pem(certificate), CERTIFICATE_MODE)
    if replaces:
        replace(file)
    else:
        create([file])
    return Made(certificate, certificate_file, key_file, renewed=True, warnings=_warnings(ends, cut))


def hosts_in(directory: Path, stem: str) -> tuple[str, ...]:
    """Return the hosts that `stem`.crt names beside OWN_HOSTS; none when there is no such file. Raises KeelMQError
    (`file_unusable`).
    """
    certificate_file, _ = _files(directory, stem)
    if not is_taken(certificate_file):
        return ()
    facts = facts_of(_first_in(certificate_file), certificate_file)
    return tuple(each for each in (*facts.dns_names, *facts.ip_addresses) if each not in OWN_HOSTS)


def _files(directory: Path, stem: str) -> tuple[Path, Path]:
    return directory / f"{stem}.crt", directory / f"{stem}.key"


def _create(certificate_file: Path, certificate: x509.Certificate, key_file: Path, key: bytes) -> None:
    # The key comes first: without its certificate it can be kept and renewed, a certificate without its key cannot.
    create(
        [
            NewFile(key_file, key, KEY_MODE),
            NewFile(certificate_file, certificate_pem(certificate), CERTIFICATE_MODE),
        ]
    )


def _authority_of(directory: Path, now: datetime) -> Authority:
    certificate_file, key_file = _files(directory, AUTHORITY)
    certificates = read(certificate_file, when_missing=f"keelmq cert ca {directory} makes an authority")
    key = read(key_file, when_missing="certificates are made where the key of the authority is kept")
    return load_authority(certificates, certificate_file, load_key(key, key_file), key_file, now)


def _first_in(certificate_file: Path) -> x509.Certificate:
    return load_certificates(read(certificate_file), certificate_file)[0]


def _require_same_name(certificate_file: Path, subject: Subject) -> None:
    """Raise Conflict when the certificate in the file names another node or application. One that names no node may
    become one of a node.
    """
    facts = facts_of(_first_in(certificate_file), certificate_file)
    nodes = tuple(uri for uri in facts.uris if uri.lower().startswith(NODE_SCHEME))
    if subject.uri is None:
        found, wanted = (*nodes, facts.common_name or "nobody"), (subject.common_name,)
    else:
        found, wanted = nodes or (subject.uri,), (subject.uri,)
    if found != wanted:
        raise Conflict(
            "names_differ",
            f"{certificate_file} names {', '.join(found)}, not {wanted[0]}; give the name that it has, or another "
            "directory",
        )


def _warnings(ends: datetime, cut: bool) -> tuple[str, ...]:
    if not cut:
        return ()
    return (f"it ends with its authority, on {ends:%Y-%m-%d at %H:%M} UTC, and not after all days that were asked for",)
