"""Packs files into a wheel of pure Python, by the standard library; the same files always make the same bytes.

It builds no extension and runs no build backend.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import keyword
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ssmgen.errors import UsageError

# what a zip can say of a file's age at least
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class About:
    """The distribution: `name` is also the package's."""

    name: str
    version: str
    summary: str
    requires: Sequence[str]


def parse(file: str) -> tuple[str, str]:
    """(name, version) of `NAME-VERSION-py3-none-any.whl`. Raises UsageError for anything else."""
    try:
        name, released, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as e:
        raise _bad(file, str(e)) from None
    own = name.replace("-", "_")
    # the one spelling that installers expect, and the name of a package too
    if build or {str(tag) for tag in tags} != {"py3-none-any"} or file != f"{own}-{released}-py3-none-any.whl":
        raise _bad(file, file)
    if not own.isidentifier() or keyword.iskeyword(own):
        raise _bad(file, file)
    return own, str(released)


def _bad(file: str, found: str) -> UsageError:
    return UsageError(
        f"not the name of a wheel: {file}",
        found=found,
        expected="NAME-VERSION-py3-none-any.whl with the name of a Python package in lower case",
        next="-o ssmgen_kernels-0.1.0-py3-none-any.whl",
    )


def pack(about: About, files: Mapping[str, bytes]) -> bytes:
    """The wheel that installs `files`, by path inside the package."""
    info = f"{about.name}-{about.version}.dist-info"
    content = {f"{about.name}/{path}": data for path, data in sorted(files.items())}
    content[f"{info}/METADATA"] = _metadata(about)
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: ssmgen {version('ssmgen')}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ).encode()
    content[f"{info}/RECORD"] = _record(content, f"{info}/RECORD")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            member = zipfile.ZipInfo(path, _EPOCH)
            member.external_attr = 0o100644 << 16
            member.create_system = 3
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return packed.getvalue()


def _metadata(about: About) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {about.name}",
        f"Version: {about.version}",
        f"Summary: {about.summary}",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {requirement}" for requirement in about.requires),
    ]
    return "\n".join([*lines, ""]).encode()


def _record(content: Mapping[str, bytes], own: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(data)])
    rows.writerow([own, "", ""])
    return text.getvalue().encode()
