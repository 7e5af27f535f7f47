"""The software bill of materials (SBOM) of a package: CycloneDX JSON with what its lock pins, and the built files.

The document has no time and no random number: the same locks and the same built files give the same bytes.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.lock_files import Lock, Pin, expanded, path_of, projects, read

LOCKS: Final = {"keelmq-broker": ("broker",), "keelmq": ("sdk", "sdk_otel", "sdk_s3"), "keelmq-spark": ("spark",)}
"""Locks that pin the dependencies of each package, those of its extras included."""
_SERIALS: Final = uuid.UUID("5f0c7a1e-6a4b-5c41-9d0e-0b6f5d1f7c11")
"""Namespace of the serial numbers, which are made from the content."""


def document(package: str, version: str, files: Mapping[str, str], root: Path) -> str:
    """Return the SBOM of a package of the tree at `root`.

    `files` has the SHA-256, in hexadecimal, of each built file by its name. Dependencies that only extras of the
    package install have the scope "optional". Raises LockError when a lock cannot be read.
    """
    own = projects(root)
    project = own[package]["project"]
    sdk = own["keelmq"]["project"]
    direct = names_of(each for line in project["dependencies"] for each in expanded(line, sdk))
    pins = merged(read(path_of(name, root)) for name in LOCKS[package])
    required = reachable(direct, pins)
    main = main_component(package, version, project, files)
    components = {(pin.name, pin.version): component(pin, pin.name in required) for pin in pins}
    # A release gives all packages of the project one version.
    siblings = [
        Component(bom_ref=name, name=name, version=version) for name in names_of(project["dependencies"]) & {*own}
    ]

    extras = names_of(each for lines in project.get("optional-dependencies", {}).values() for each in lines)
    bom = Bom(components=[*siblings, *components.values()])
    bom.metadata.component = main
    requires = [components[pin.name, pin.version] for pin in pins if pin.name in direct | extras]
    bom.register_dependency(main, [*siblings, *requires])
    for pin in pins:
        requires = [components[each.name, each.version] for each in pins if pin.name in each.via]
        bom.register_dependency(components[pin.name, pin.version], requires)
    return settled(bom)


def settled(bom: Bom) -> str:
    """Return the JSON text of the document, with a serial number that follows from the rest of it."""
    content: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    content["metadata"].pop("timestamp")
    content.pop("serialNumber")
    serial = uuid.uuid5(_SERIALS, json.dumps(content, sort_keys=True))
    return json.dumps({**content, "serialNumber": serial.urn}, indent=2, sort_keys=True) + "\n"


def main_component(package: str, version: str, project: Mapping[str, Any], files: Mapping[str, str]) -> Component:
    """Describe the package itself: its built files are its distributions."""
    return Component(
        bom_ref=package,
        name=package,
        version=version,
        type=ComponentType.APPLICATION if package == "keelmq-broker" else ComponentType.LIBRARY,
        description=project["description"],
        licenses=[DisjunctiveLicense(id=project["license"])],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(name),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
            )
            for name, sha256 in sorted(files.items())
        ],
    )


def component(pin: Pin, required: bool) -> Component:
    """Describe a pinned version: its distribution has the hashes of all files that the lock admits."""
    url = PackageURL(type="pypi", name=pin.name, version=pin.version)
    return Component(
        bom_ref=url.to_string(),
        purl=url,
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED if required else ComponentScope.OPTIONAL,
        properties=[Property(name="keelmq:marker", value=pin.marker)] if pin.marker else [],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(url.to_string()),
                comment="SHA-256 of each file of this version",
                hashes=[
                    HashType(alg=HashAlgorithm.SHA_256, content=each.removeprefix("sha256:")) for each in pin.hashes
                ],
            )
        ],
    )


def names_of(requirements: Iterable[str]) -> set[str]:
    """Return the normalized names of the packages that the requirements are for."""
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def merged(locks: Iterable[Lock]) -> list[Pin]:
    """Return the pins of several locks by name and version; each has all of its `via`."""
    pins: dict[tuple[str, str], Pin] = {}
    for pin in (pin for lock in locks for pin in lock.pins):
        known = pins.setdefault((pin.name, pin.version), pin)
        pins[pin.name, pin.version] = known._replace(via=tuple(dict.fromkeys((*known.via, *pin.via))))
    return [pins[key] for key in sorted(pins)]


def reachable(direct: Iterable[str], pins: Iterable[Pin]) -> set[str]:
    """Return the names of the packages and of all packages that they require, directly or not."""
    found, pins = set(direct), list(pins)
    while more := {pin.name for pin in pins if found & set(pin.via)} - found:
        found |= more
    return found
