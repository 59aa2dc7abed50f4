"""A software bill of materials in CycloneDX: the project and the packages that are packed with it, each with version, license, package URL, and the
SHA-256 of the file that set-up installed it from.

The same packages produce the same file: its date is that of the source (`SOURCE_DATE_EPOCH`), and its serial number is derived from its contents.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from tools.package_hashes import INSTALLED

__all__ = ["bill_of_materials"]

LICENSE_LENGTH_MAX = 100
"""Some packages have the whole text of their license in this field."""


def bill_of_materials(project: str, packages: Iterable[str], *, made_s: int) -> str:
    """JSON. `packages`: installed distributions, the project among them or not. `made_s`: seconds since 1970."""
    recorded = Path(sys.prefix) / INSTALLED
    hashes: dict[str, list[str]] = json.loads(recorded.read_text()) if recorded.exists() else {}
    main = _component(project, ComponentType.APPLICATION, hashes)
    components = [_component(name, ComponentType.LIBRARY, hashes) for name in sorted({canonicalize_name(each) for each in packages} - {project})]
    bom = Bom(components=components)
    bom.metadata.component = main
    bom.metadata.timestamp = datetime.fromtimestamp(made_s, UTC)
    bom.register_dependency(main, components)
    bom.serial_number = uuid5(NAMESPACE_URL, "\n".join(str(each.purl) for each in (main, *components)))
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(name: str, kind: ComponentType, hashes: Mapping[str, list[str]]) -> Component:
    about = importlib.metadata.distribution(name)
    fields = about.metadata
    stated = next((fields[name] for name in ("License-Expression", "License") if name in fields), "")
    licenses = [LicenseFactory().make_from_string(stated)] if 0 < len(stated) <= LICENSE_LENGTH_MAX else []
    purl = PackageURL("pypi", name=canonicalize_name(name), version=about.version)
    version, digest = hashes.get(canonicalize_name(name), ("", ""))
    known = [HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest and version == about.version else []
    return Component(name=canonicalize_name(name), version=about.version, type=kind, purl=purl, bom_ref=str(purl), licenses=licenses, hashes=known)
