"""Fixtures and flags of all tests; it needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# the first example pays for imports, and a busy machine for everything
settings.register_profile("ssmgen", deadline=None)
settings.load_profile("ssmgen")

MODEL = "tiny_9b"
SPEC = """\
schema: 1
model: {name: tiny_9b, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 16, groups: 2, head_dim: 64, state: 128}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime}
    routes:
      short: {when: "B*T <= 4096", plan: segmented}
      long: {when: "B*T > 4096", plan: three_stage}
targets: [sm_90]
"""
GDN = """\
schema: 1
model: {name: gdn_9b, source: table}
operators:
  gated_delta_rule_packed_decode:
    shape: {key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128}
    dtypes: {x: bfloat16, state: float32}
    options: {qk_l2norm: true}
targets: [sm_90]
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what tests/golden expects, instead of comparing"
    )


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Project:
    """A user's project in a temporary folder, which is also the current one."""

    root: Path
    run: Callable[..., Outcome]

    def write(self, path: str, text: str) -> Path:
        """Write a file of the project."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project; `run("generate", "--check")` runs a verb in this process."""
    from typer.testing import CliRunner

    from ssmgen.cli import app

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    (tmp_path / "pyproject.toml").write_text("[tool.ssmgen]\n")
    return Project(tmp_path, run)


@pytest.fixture
def locked(project: Project) -> Project:
    """A project with one spec and its lock, nothing generated yet."""
    project.write(f"specs/{MODEL}.yaml", SPEC)
    assert project.run("lock").code == 0
    return project


@pytest.fixture
def generated(locked: Project) -> Project:
    """A project whose generated code is as it should be."""
    assert locked.run("generate").code == 0
    return locked
