"""Names of models and kernels, built in one place and read back: parse(format(id)) == id.

It knows no files: `paths` does.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from ssmgen.errors import SpecError

# a folder and a module are named so
_LONGEST = 100
_WORD = re.compile(r"[a-z][a-z0-9_]*")


def model_name(source: str) -> str:
    """The model's name from a repository id or file stem: `Qwen/Qwen3.5-122B-A10B` -> `qwen3p5_122b_a10b`.

    `-` and spaces become `_`, a `.` between digits becomes `p`. Raises SpecError when no valid name is left.
    """
    stem = source.rsplit("/", 1)[-1].lower()
    stem = re.sub(r"(?<=\d)\.(?=\d)", "p", stem)
    name = re.sub(r"[^a-z0-9]+", "_", stem).strip("_")
    check_name("model", name, source)
    return name


def check_name(kind: str, name: str, source: str | None = None) -> None:
    """Raise SpecError unless `name` is lower-case words of a-z, 0-9 and _ that start with a letter."""
    if not _WORD.fullmatch(name) or len(name) > _LONGEST or keyword.iskeyword(name):
        raise SpecError(
            f"no valid {kind} name in {source if source is not None else name!r}",
            found=repr(name),
            expected="lower-case letters, digits and _, starting with a letter, no Python keyword, at most "
            f"{_LONGEST} characters, such as nemotron_h_8b or qwen3p5_9b",
            next=f"give another {kind} name",
        )


@dataclass(frozen=True)
class KernelId:
    """One generated kernel file: whose it is, where it runs, what it does."""

    model: str
    target: str
    operator: str
    route: str
    stage: str

    def format(self) -> str:
        """`model/target/operator/route/stage`, the path of the file without its suffix."""
        parts = (self.model, self.target, self.operator, self.route, self.stage)
        for kind, part in zip(("model", "target", "operator", "route", "stage"), parts, strict=True):
            check_name(kind, part)
        text = "/".join(parts)
        if KernelId.parse(text) != self:
            raise SpecError(f"kernel name {text!r} does not read back", found=text, expected="one that does")
        return text

    @staticmethod
    def parse(text: str) -> KernelId:
        """The id behind `model/target/operator/route/stage`; SpecError for anything else."""
        parts = text.split("/")
        if len(parts) != 5:
            raise SpecError(
                f"not a kernel name: {text!r}",
                found=f"{len(parts)} parts",
                expected="model/target/operator/route/stage",
            )
        return KernelId(*parts)
