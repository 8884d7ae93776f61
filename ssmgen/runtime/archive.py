"""Reads an archive of cubins, a folder or a .tar.xz of one: what kernels it holds and what each was promised.

It launches nothing and writes nothing (`build` does); a cubin's hash is checked when the cubin is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import LaunchError

INDEX = "index.json"
SCHEMA = 1
INT32_MAX = 2**31 - 1
# bytes: a launch is prepared once for all addresses that are equal modulo this
ALIGNMENT = 16
# the most special first: the first whose promises hold is launched
VARIANTS = ("aligned", "general")
_CUBIN = re.compile(r"([0-9a-f]{64})\.cubin")


@dataclass(frozen=True)
class Promise:
    """What a variant was compiled for: the address in bytes, strides and lengths in elements, None where not constant.

    `signatures` makes them; this side of the archive runs where nothing but torch and cuda-bindings is installed.
    """

    base_divisible_by: int
    stride_divisible_by: tuple[int, ...]
    stride_constant: tuple[int | None, ...]
    shape_divisible_by: tuple[int, ...]
    shape_constant: tuple[int | None, ...]

    def why_not(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[str, str] | None:
        """(found, expected) of the first promise that does not hold, or None."""
        if address % self.base_divisible_by:
            return f"data at {address:#x}", f"an address that is a multiple of {self.base_divisible_by} bytes"
        for label, values, constants, divisors in (
            ("shape", shape, self.shape_constant, self.shape_divisible_by),
            ("strides", strides, self.stride_constant, self.stride_divisible_by),
        ):
            for axis, (value, constant, divisor) in enumerate(zip(values, constants, divisors, strict=True)):
                found = f"{label} {tuple(values)}"
                if constant is not None and value != constant:
                    return found, f"{constant} on axis {axis}"
                if value % divisor or value < 0:
                    return found, f"on axis {axis} a multiple of {divisor}, not negative"
        return None

    def settle(self, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
        """The strides with those of axes of one element, which address nothing, made to keep the promises."""
        settled = list(strides)
        reach = 1
        for axis in reversed(range(len(settled))):
            constant, divisor = self.stride_constant[axis], self.stride_divisible_by[axis]
            if shape[axis] == 1:
                natural = min(-(-reach // divisor), INT32_MAX // divisor) * divisor
                settled[axis] = natural if constant is None else constant
            reach = max(reach, shape[axis] * settled[axis])
        return tuple(settled)


@dataclass(frozen=True)
class ArrayParameter:
    """A kernel's array parameter, with the promises of each variant."""

    name: str
    dtype: str
    ndim: int
    promises: Mapping[str, Promise]


@dataclass(frozen=True)
class ScalarParameter:
    """A kernel's scalar parameter, int32 or float32."""

    name: str
    dtype: str


Parameter = ArrayParameter | ScalarParameter


@dataclass(frozen=True)
class Entry:
    """One kernel: its cubin's file, variant -> symbol, its parameters in order, the sha256 of its source."""

    source: str
    cubin: str
    symbols: Mapping[str, str]
    parameters: tuple[Parameter, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(v for v in VARIANTS if v in self.symbols)


def target_of(name: str) -> str:
    """The target of the kernel called `model/target/operator/route/stage`."""
    return name.split("/")[1]


class Archive:
    """An opened archive at `path`: `compiler`, and the kernels by the text of their KernelId.

    `files` are its contents where they are in memory; `path` is then what errors name. `made_by` is the command that
    makes such an archive.
    """

    def __init__(
        self, path: Path, files: Mapping[str, bytes] | None = None, *, made_by: str = "ssmgen compile"
    ) -> None:
        self.path = path
        self.made_by = made_by
        self._mend = f"put back what was moved, lost or changed since it was made, or make it anew: {made_by}"
        self._files = self._read_tar() if files is None and path.is_file() else files
        index = self._index()
        self.compiler: str = index["compiler"]
        self._raw: dict[str, Any] = index["kernels"]
        self._entries: dict[str, Entry] = {}

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The targets of all its kernels, sorted."""
        return tuple(sorted({target_of(name) for name in self._raw}))

    def kernel(self, name: str) -> Entry:
        """The kernel called `model/target/operator/route/stage`; LaunchError where there is none."""
        entry = self._entries.get(name)
        if entry is None:
            if name not in self._raw:
                raise LaunchError(
                    f"no kernel {name} in the archive",
                    where=self.path,
                    found="kernels of " + (", ".join(sorted({k.split("/")[0] for k in self._raw})) or "no model"),
                    next=f"{self.made_by} {name.split('/', maxsplit=1)[0]}",
                )
            entry = self._entries[name] = self._parsed(name)
        return entry

    def check_source(self, name: str, file: Path) -> None:
        """Raise LaunchError where the kernel was compiled from another text than `file`, or that is gone: its grid may
        differ.
        """
        expected = self.kernel(name).source
        try:
            found = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as e:
            raise LaunchError(
                f"{file.name}, which {name} was compiled from, cannot be read",
                where=file,
                found=e.strerror,
                expected="the file where it was imported from, until its kernel has been launched once",
                next=self._mend,
            ) from None
        if found != expected:
            raise LaunchError(
                f"{name} was compiled from another version of {file.name}",
                where=self.path,
                found=f"{file} with sha256 {found}",
                expected=f"sha256 {expected}",
                next=self._mend,
            )

    def cubin(self, entry: Entry) -> bytes:
        """The bytes of a kernel's cubin, whose hash is its name."""
        data = self._read(entry.cubin)
        digest = hashlib.sha256(data).hexdigest()
        if f"{digest}.cubin" != entry.cubin:
            raise LaunchError(f"{entry.cubin} is damaged", where=self.path, found=f"sha256 {digest}", next=self._mend)
        return data

    def _index(self) -> dict[str, Any]:
        try:
            index = json.loads(self._read(INDEX))
        except ValueError as e:
            raise LaunchError(f"{INDEX} is not JSON", where=self.path, found=e, next=self._mend) from None
        schema = index.get("schema") if isinstance(index, dict) else None
        if schema != SCHEMA:
            raise LaunchError(f"{INDEX}: schema", where=self.path, found=schema, expected=str(SCHEMA), next=self._mend)
        if not isinstance(index.get("compiler"), str) or not isinstance(index.get("kernels"), dict):
            raise self._malformed("compiler, kernels", "a string and an object")
        for name in index["kernels"]:
            if len(name.split("/")) != 5:
                raise self._malformed(f"kernels.{name}", "a name model/target/operator/route/stage")
        return dict(index)

    def _parsed(self, name: str) -> Entry:
        try:
            raw = self._raw[name]
            entry = Entry(
                str(raw["source_sha256"]),
                raw["cubin"],
                {variant: str(raw["symbols"][variant]) for variant in VARIANTS if variant in raw["symbols"]},
                tuple(_parameter(p) for p in raw["parameters"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise self._malformed(
                f"kernels.{name}", f"cubin, symbols, parameters and source_sha256 ({type(e).__name__}: {e})"
            ) from None
        if not _CUBIN.fullmatch(entry.cubin) or not entry.symbols:
            raise self._malformed(f"kernels.{name}", "cubin <sha256>.cubin and a symbol of " + " or ".join(VARIANTS))
        return entry

    def _read(self, name: str) -> bytes:
        if self._files is not None and name in self._files:
            return self._files[name]
        try:
            if self._files is None:
                return (self.path / name).read_bytes()
            raise FileNotFoundError(name)
        except OSError as e:
            what = f"no archive of cubins: {name} cannot be read" if name == INDEX else f"{name} is missing"
            raise LaunchError(what, where=self.path, found=e, next=self._mend) from None

    def _read_tar(self) -> dict[str, bytes]:
        """The members by bare file name: one folder deep or none; nothing is unpacked to disk."""
        import tarfile

        files: dict[str, bytes] = {}
        try:
            with tarfile.open(self.path, "r:*") as tar:
                for member in tar:
                    stream = tar.extractfile(member)
                    if stream is not None:
                        files[PurePosixPath(member.name).name] = stream.read()
        except (OSError, tarfile.TarError, EOFError, ValueError) as e:
            raise LaunchError("no readable .tar.xz of cubins", where=self.path, found=e, next=self._mend) from None
        return files

    def _malformed(self, key: str, expected: str) -> LaunchError:
        return LaunchError(f"{INDEX}: {key} is malformed", where=self.path, expected=expected, next=self._mend)


def _parameter(raw: Mapping[str, Any]) -> Parameter:
    if "promises" not in raw:
        if raw["dtype"] not in ("int32", "float32"):
            raise ValueError(f"scalar {raw['name']} of {raw['dtype']}")
        return ScalarParameter(raw["name"], raw["dtype"])
    ndim = int(raw["ndim"])
    promises = {variant: _promise(raw["promises"][variant], ndim) for variant in VARIANTS if variant in raw["promises"]}
    return ArrayParameter(raw["name"], raw["dtype"], ndim, promises)


def _promise(raw: Mapping[str, Any], ndim: int) -> Promise:
    axes = {field: tuple(raw[field]) for field in Promise.__dataclass_fields__ if field != "base_divisible_by"}
    if any(len(values) != ndim for values in axes.values()) or set(raw) != set(Promise.__dataclass_fields__):
        # a promise that is not understood cannot be checked
        raise ValueError(f"promises {', '.join(raw)} of rank {ndim}")
    base = int(raw["base_divisible_by"])
    if base < 1 or ALIGNMENT % base:
        raise ValueError(f"base_divisible_by {base}, which does not divide {ALIGNMENT}")
    return Promise(base, **axes)
