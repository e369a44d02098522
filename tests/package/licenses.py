"""The license of each locked package, from what those that are installed state about themselves.

As a script (`make licenses`) it writes requirements/licenses.csv again. What a package that is not
installed here has stays as it is, and a new one of these is to be filled in by hand.
"""

import csv
from collections.abc import Mapping
from importlib import metadata

from tests.package.test_supply import LICENSES, locked_packages, normalize_name, read_licenses

UNKNOWN = "UNKNOWN"
# What packages without an SPDX expression write instead: a classifier's last part, or a name.
SPDX = {
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD-3-Clause License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
    "Other/Proprietary License": "LicenseRef-NVIDIA-Proprietary",
    "Zope Public License": "ZPL-2.1",
}


def stated_license(package: metadata.PackageMetadata) -> str:
    """The license that a package states: its expression, or a classifier or name that we know."""
    expression = _field(package, "License-Expression")
    if expression:
        return expression
    classifiers: list[str] = [
        value.rpartition(" :: ")[2]
        for value in package.get_all("Classifier") or ()
        if value.startswith("License :: ") and not value.endswith("OSI Approved")
    ]
    license_text = _field(package, "License")
    for name in (*classifiers, license_text):
        if name in SPDX.keys() | SPDX.values():
            return SPDX.get(name, name)
    return license_text.partition("\n")[0][:40] or UNKNOWN


def _field(package: metadata.PackageMetadata, name: str) -> str:
    return str(package[name]).strip() if name in package else ""


def write() -> None:
    """Write the list, a line for each locked package."""
    known = read_licenses() if LICENSES.exists() else {}
    installed = {
        normalize_name(package.metadata["Name"]): package.metadata
        for package in metadata.distributions()
    }
    with LICENSES.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("package", "license"))
        for name in sorted(locked_packages()):
            rows.writerow((name, _license(name, installed, known)))


def _license(
    name: str, installed: Mapping[str, metadata.PackageMetadata], known: Mapping[str, str]
) -> str:
    """What is stated, as an expression; else what the list had, which somebody looked up."""
    if name in installed:
        expression = _field(installed[name], "License-Expression")
        if expression or name not in known:
            return expression or stated_license(installed[name])
    return known.get(name, UNKNOWN)


if __name__ == "__main__":
    write()
