"""Drawn models as a folder that a GPU host can run: their packages, their problems, and an archive of their cubins.

    python -m ssmgen.verify.drawn -o drawn --models 40 --calls 4 --seed 2026 [--no-compile]

writes `problems.json`, `<model>/` packages and `kernels.tar.xz`; `tests/gpu/test_drawn.py` runs it where SSMGEN_DRAWN
names it, compiled there where there is no archive.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ssmgen import build, generate, writing
from ssmgen.lock import Lock
from ssmgen.spec import Spec
from ssmgen.verify import problems
from ssmgen.verify.problems import Call, Drawn, Problem

PROBLEMS, ARCHIVE = "problems.json", "kernels.tar.xz"


@dataclass(frozen=True)
class Model:
    """A drawn model under a name of its own, with its calls."""

    name: str
    drawn: Drawn
    calls: tuple[Call, ...]

    @property
    def spec(self) -> Spec:
        return self.drawn.spec(name=self.name)

    @property
    def lock(self) -> Lock:
        return self.drawn.lock()


def draw(models: int, calls: int, seed: int) -> tuple[Model, ...]:
    """`models` models of `calls` calls each, the same for the same seed."""
    random = Random(seed)
    return tuple(_model(f"drawn_{at:03}", calls, random) for at in range(models))


def _model(name: str, calls: int, random: Random) -> Model:
    drawn = problems.sample(Drawn, random)
    return Model(name, drawn, tuple(problems.sample(Call, random).for_model(drawn.operator) for _ in range(calls)))


def write(models: tuple[Model, ...], folder: Path) -> None:
    """The packages and the problems."""
    listed = {m.name: [str(Problem(m.drawn, call)) for call in m.calls] for m in models}
    files = {PROBLEMS: json.dumps(listed, indent=1) + "\n"}
    for model in models:
        files |= generate.fileset(model.spec, model.lock)
    writing.write_files(folder, files)


def main() -> None:
    """The command line in the module's docstring."""
    from ssmgen import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    models = draw(args.models, args.calls, args.seed)
    write(models, args.output)
    if not args.no_compile:
        pairs = [(m.spec, m.lock) for m in models]
        build.run(pairs, ["sm_90"], args.output / ARCHIVE, build.Settings(progress=table.progress))
    print(f"{args.output}: {len(models)} models, {sum(len(m.calls) for m in models)} problems")


if __name__ == "__main__":
    main()
