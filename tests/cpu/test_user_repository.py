"""The walk through a user's own repository: init, new, generate, commit; a hand edit turns hook and CI red."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

BIN = Path(sys.executable).parent
CONFIG = {
    "_name_or_path": "nvidia/Nemotron-H-8B",
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M-M*M-",
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
}
# small enough to interpret while somebody waits
SMALL = """\
schema: 1
model: {name: small, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 4, groups: 2, head_dim: 16, state: 24}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime}
    routes:
      all: {when: "B >= 1", plan: three_stage}
targets: [sm_90]
"""
# what the generated code imports, and nothing more: enough to import it where neither is installed
STANDINS = {
    "torch.py": "from unittest.mock import MagicMock\n\n\ndef __getattr__(name):\n    return MagicMock()\n",
    "cuda/tile.py": """
class _Any:
    def __getattr__(self, name): return _Any()
    def __call__(self, *args, **kwargs): return lambda function: function
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return _Any()
""",
}
IMPORT = """
import importlib.util, sys
sys.path[:0] = sys.argv[1:]
assert importlib.util.find_spec("ssmgen") is None and importlib.util.find_spec("jinja2") is None
import nemotron_h_8b
print(nemotron_h_8b.mamba_chunk_scan_combined.__name__)
"""


class Repository:
    """A git repository in a folder of its own, and the commands a person types in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "NO_COLOR": "1",
        }
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_NAME": "a", f"GIT_{role}_EMAIL": "a@example.com"}

    def run(self, *command: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=where or self.root, env=self.environment, capture_output=True, text=True, check=False
        )

    def must(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def commit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.must("git", "add", "-A")
        return self.run("git", "commit", "-q", "-m", "a change", *arguments)

    def ci(self, step: str = "generate --check") -> subprocess.CompletedProcess[str]:
        """The workflow's command with `step` in it, in a fresh clone of what is committed."""
        clone = self.root.with_name("clone")
        shutil.rmtree(clone, ignore_errors=True)
        self.must("git", "clone", "-q", str(self.root), str(clone))
        workflow = YAML(typ="safe", pure=True).load((clone / ".github/workflows/ssmgen.yml").read_text())
        steps = workflow["jobs"]["generated-kernels"]["steps"]
        (command,) = [s["run"] for s in steps if step in s.get("run", "") and "pip install" not in s["run"]]
        return self.run("bash", "-e", "-c", command, where=clone)

    @property
    def kernel(self) -> str:
        """One of the generated kernels."""
        found = sorted(self.root.glob("generated/nemotron_h_8b/*/*/*/state.py"))
        return found[0].relative_to(self.root).as_posix()

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new))


def new_repository(root: Path) -> Repository:
    root.mkdir()
    repository = Repository(root)
    repository.must("git", "init", "-q")
    (root / "config.json").write_text(json.dumps(CONFIG))
    repository.must("ssmgen", "init")
    return repository


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = new_repository(tmp_path_factory.mktemp("walk") / "serving")
    repository.must("ssmgen", "new", "config.json")
    repository.must("ssmgen", "generate")
    done = repository.commit()
    assert done.returncode == 0, done.stdout + done.stderr
    return repository


@pytest.fixture
def repository(walked: Repository, tmp_path: Path) -> Repository:
    """The repository after init, new, generate and a commit; each test has a copy."""
    return Repository(shutil.copytree(walked.root, tmp_path / "serving", symlinks=True))


def test_init_alone_can_be_committed(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "serving")
    done = repository.commit()
    assert done.returncode == 0, done.stdout + done.stderr
    assert repository.ci().returncode == 0


def test_the_walk_commits_kernels_and_ci_is_green(repository: Repository) -> None:
    committed = repository.must("git", "ls-files").split()
    assert {"specs/nemotron_h_8b.yaml", "specs/nemotron_h_8b.lock.yaml", repository.kernel} <= set(committed)
    assert repository.ci().returncode == 0
    assert repository.must("git", "check-attr", "linguist-generated", repository.kernel).endswith(": true\n")


def test_a_hand_edit_turns_the_hook_red(repository: Repository) -> None:
    before = repository.must("git", "rev-parse", "HEAD")
    repository.edit(repository.kernel, "CHUNK = ", "CHUNK = 2 * ")
    done = repository.commit()
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "state.py" in said
    assert "ssmgen generate" in said
    assert repository.must("git", "rev-parse", "HEAD") == before

    repository.must("ssmgen", "generate")
    assert repository.must("git", "diff", "HEAD", "--", "generated") == ""


def test_a_hand_edit_turns_ci_red(repository: Repository) -> None:
    repository.edit(repository.kernel, "CHUNK = ", "CHUNK = 2 * ")
    assert repository.commit("--no-verify").returncode == 0
    done = repository.ci()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "state.py" in done.stdout + done.stderr
    assert "ssmgen generate" in done.stdout + done.stderr

    repository.must("ssmgen", "generate")
    assert repository.commit().returncode == 0
    assert repository.ci().returncode == 0


def test_a_changed_spec_turns_the_hook_red(repository: Repository) -> None:
    repository.edit("specs/nemotron_h_8b.yaml", "dt_softplus: true", "dt_softplus: false")
    assert repository.commit().returncode != 0


def test_the_hook_checks_what_is_committed_not_the_work_tree(repository: Repository) -> None:
    repository.edit(repository.kernel, "CHUNK = ", "CHUNK = 2 * ")
    (repository.root / "README").write_text("unrelated\n")
    repository.must("git", "add", "README")
    assert repository.run("git", "commit", "-q", "-m", "unrelated").returncode == 0

    repository.must("git", "add", repository.kernel)
    repository.must("ssmgen", "generate")
    assert repository.run("git", "commit", "-q", "-m", "edited in the index only").returncode != 0


def test_another_version_is_said_to_be_that(repository: Repository) -> None:
    text = (repository.root / "pyproject.toml").read_text()
    (repository.root / "pyproject.toml").write_text(text.replace('requires = "==', 'requires = "==99.'))
    done = repository.run("ssmgen", "generate", "--check")
    assert done.returncode == 2
    assert "another version of ssmgen" in done.stdout + done.stderr
    assert "state.py" not in done.stdout + done.stderr


def test_a_clone_without_ssmgen_on_its_path_is_told(repository: Repository) -> None:
    hook = repository.root / ".git/hooks/pre-commit"
    hook.write_text(hook.read_text().replace(str(BIN / "ssmgen"), "/nowhere/ssmgen"))
    repository.edit(repository.kernel, "CHUNK = ", "CHUNK = 2 * ")
    without = [p for p in os.environ["PATH"].split(os.pathsep) if not shutil.which("ssmgen", path=p)]
    repository.environment["PATH"] = os.pathsep.join(without)
    done = repository.commit()
    assert done.returncode != 0
    assert "not on PATH" in done.stderr


def test_committed_code_imports_without_ssmgen(repository: Repository, tmp_path: Path) -> None:
    standins = tmp_path / "standins"
    for name, text in STANDINS.items():
        (standins / name).parent.mkdir(parents=True, exist_ok=True)
        (standins / name).write_text(text)
    generated = str(repository.root / "generated")
    # -I -S: no site-packages, so nothing that is installed can be imported
    said = repository.must(sys.executable, "-I", "-S", "-c", IMPORT, str(standins), generated)
    assert said == "mamba_chunk_scan_combined\n"


def test_the_property_tests_run_in_ci_and_find_a_wrong_kernel(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    repository = new_repository(tmp_path / "serving")
    assert repository.commit().returncode == 0
    assert repository.ci("pytest").returncode == 0
    (repository.root / "specs/small.yaml").write_text(SMALL)
    repository.must("ssmgen", "lock")
    repository.must("ssmgen", "generate")
    done = repository.commit()
    assert done.returncode == 0, done.stdout + done.stderr
    done = repository.ci("pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

    kernel = "generated/small/sm_90/mamba_chunk_scan_combined/all/output.py"
    repository.edit(kernel, ">= token[None, :]", "> token[None, :]")
    assert repository.commit("--no-verify").returncode == 0
    done = repository.ci("pytest")
    assert done.returncode == 1
    assert "times its limit" in done.stdout
    again = next(line for line in done.stdout.splitlines() if "ssmgen verify" in line).partition("again:")[2].strip()
    # shrunk: the simplest call that shows it
    assert "regime" not in again
    assert "layout" not in again
    done = repository.run("bash", "-c", f"{again} --no-compile")
    assert done.returncode == 1
    assert "times its limit" in done.stdout
