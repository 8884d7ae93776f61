"""Tests that need a CUDA GPU: without one they are skipped, and pytest's summary counts them.

SSMGEN_ARCHIVE names an archive of cubins to launch; without it the committed packages are compiled here.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def missing() -> str | None:
    """Why nothing here can run, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def models() -> list[str]:
    """Every committed model that has a package."""
    from ssmgen.paths import project

    return sorted(p.parent.name for p in project(HERE).generated.glob("*/__init__.py"))


@cache
def load(model: str):
    """The model's package: from the cubins if there is an archive, else compiled here."""
    import ssmgen
    from ssmgen.paths import project

    folder = project(HERE).generated / model
    archive = os.environ.get("SSMGEN_ARCHIVE")
    return ssmgen.load(folder, backend="cubin", archive=archive) if archive else ssmgen.load(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernels" in metafunc.fixturenames:
        metafunc.parametrize("kernels", models(), indirect=True)


@pytest.fixture
def kernels(request: pytest.FixtureRequest):
    """The package of each committed model in turn; of one that has another target than this GPU, a skip."""
    import torch

    package = load(request.param)
    major, minor = torch.cuda.get_device_capability()
    if not (Path(package.__file__).parent / f"sm_{major}{minor}").is_dir():
        pytest.skip(f"{request.param} is not committed for sm_{major}{minor}")
    return package


@pytest.fixture
def any_kernels():
    """The package of the committed model with the fewest heads: for what does not depend on the model."""
    if not models():
        pytest.skip("no committed model")
    return load(min(models(), key=heads))


def heads(model: str) -> int:
    """As the package's manifest has it: loading all of them would compile all of them."""
    from ssmgen.paths import project

    manifest = json.loads((project(HERE).generated / model / "MANIFEST.json").read_text())
    return min(shape["heads"] for shape in manifest["shapes"].values())
