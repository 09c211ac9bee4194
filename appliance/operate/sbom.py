"""A bill of materials in CycloneDX 1.6: what a bundle holds, each thing with version, hash and licence where known.

Pure: it is given the parts and the time; the same parts make the same text.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from appliance.report.status import licence_of

Kind = Literal["library", "container", "application", "machine-learning-model", "data"]


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in the bundle. `sha256` and `licence` are '' where they are not known; `purl` names it to others."""

    kind: Kind
    name: str
    version: str
    sha256: str = ""
    licence: str = ""
    purl: str = ""


def python_part(name: str, version: str, sha256: str) -> Part:
    """A Python package; its licence as its own metadata tells, when it is installed here in that version."""
    return Part("library", name, version, sha256, licence_of(name, version), f"pkg:pypi/{name.lower()}@{version}")


def cyclonedx(parts: Iterable[Part], version: str, made_at: str) -> dict[str, Any]:
    """The document; its serial number follows from what it lists."""
    components = [_component(part) for part in sorted(parts, key=lambda p: (p.kind, p.name, p.version))]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, repr(components) + version)}",
        "version": 1,
        "metadata": {
            "timestamp": made_at,
            "component": {"type": "application", "name": "corral", "version": version, "bom-ref": "corral"},
        },
        "components": components,
        "dependencies": [{"ref": "corral", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _component(part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": part.kind,
        "bom-ref": part.purl or f"{part.kind}:{part.name}@{part.version}",
        "name": part.name,
        "version": part.version,
    }
    if part.purl:
        found["purl"] = part.purl
    if part.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": part.sha256}]
    if part.licence:
        found["licenses"] = [{"license": {"name": part.licence}}]
    return found
