"""Kernels really compile, for every target, on a machine without a GPU; skipped where there is no compiler."""

from __future__ import annotations

import os
import site
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from ssmgen import build, compiler, lock, spec
from ssmgen.build import Job, Settings
from ssmgen.cache import Cache
from ssmgen.errors import CompilerError
from ssmgen.lock import Entry, Lock
from ssmgen.plans import RouteSchedule
from ssmgen.runtime.archive import Archive
from ssmgen.spec import Spec
from ssmgen.targets import TARGETS

try:
    COMPILER = compiler.check_compiler()
except CompilerError as e:
    pytest.skip(f"no cuTile compiler here: {e.what}", allow_module_level=True)

# the odd one has no axis of whole rows of 16 bytes
SPEC = """\
schema: 1
model: {{name: {name}, source: table}}
operators:
  mamba_chunk_scan_combined:
    shape: {{heads: {heads}, groups: {groups}, head_dim: {head_dim}, state: {state}}}
    dtypes: {{x: {x}, dt: float32, chunk_state: {chunk_state}, state: float32}}
    options: {{D: {D}, dt_bias: true, dt_softplus: true, dt_limit: runtime}}
    routes:
      short: {{when: "B*T <= 4096", plan: segmented}}
      long: {{when: "B*T > 4096", plan: three_stage}}
targets: [sm_90]
"""
EVEN = SPEC.format(
    name="even", heads=4, groups=2, head_dim=32, state=32, x="bfloat16", chunk_state="bfloat16", D="per_head"
)
ODD = SPEC.format(name="odd", heads=3, groups=1, head_dim=20, state=12, x="float16", chunk_state="float32", D="none")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(cache=Cache(tmp_path_factory.mktemp("cache")))


def quick(value: Spec, target: str) -> Lock:
    """Schedules whose kernels compile fast: short chunks, one head a block."""
    made = {}
    for key, entry in lock.derive(value, [target]).items():
        stages = dict(entry.schedule.stages)
        stages["output"] = replace(stages["output"], rows=16, heads_per_block=1, head_dim_tile=16)
        stages["state"] = replace(stages["state"], state_tile=16, head_dim_tile=16)
        plan = replace(entry.schedule.plan, chunk=16)
        made[key] = Entry(RouteSchedule(plan, tuple(stages.items())), "derived")
    return made


def jobs(text: str, target: str) -> list[Job]:
    name = "even" if "name: even" in text else "odd"
    value = spec.loads(text, Path(f"{name}.yaml"))
    return build.jobs_of(value, quick(value, target), target)


@pytest.mark.parametrize("target", TARGETS)
def test_every_stage_compiles_and_no_host_path_ends_in_a_cubin(target: str, settings: Settings) -> None:
    made = build.compile_jobs([j for j in jobs(EVEN, target) if j.kernel.id.route == "short"], COMPILER, settings)
    assert {c.job.kernel.id.stage for c in made} == {"cumsum", "state", "combine", "output"}
    places = [
        Path.cwd(),
        tempfile.gettempdir(),
        Path.home(),
        sys.prefix,
        *site.getsitepackages(),
        Path(__file__).parent,
    ]
    for c in made:
        assert c.cubin.startswith(b"\x7fELF")
        stage = c.job.kernel.symbol
        assert f".text.{stage}_aligned\0".encode() in c.cubin
        assert f".text.{stage}_general\0".encode() in c.cubin
        assert f"-arch {target}".encode() in c.cubin
        for place in (*places, "site-packages", "cuda/tile", ".py", "ssmgen"):
            assert os.fsencode(place) not in c.cubin, place


def test_sizes_that_are_no_whole_rows_compile(settings: Settings) -> None:
    made = build.compile_jobs(jobs(ODD, "sm_90"), COMPILER, settings)
    assert [c.job.kernel.id.route for c in made] == ["short"] * 4 + ["long"] * 3


def test_the_same_source_makes_the_same_bytes(settings: Settings, tmp_path: Path) -> None:
    (job,) = (j for j in jobs(EVEN, "sm_90") if (j.kernel.id.route, j.kernel.id.stage) == ("long", "state"))
    text = job.kernel.text.replace("even (", "another model (").replace("import cuda", "# a comment\nimport cuda", 1)
    assert text != job.kernel.text
    titled = replace(job, kernel=replace(job.kernel, text=text))
    (one,) = build.compile_jobs([job], COMPILER, settings)
    (two,) = build.compile_jobs([titled], COMPILER, replace(settings, cache=Cache(tmp_path)))
    assert two.how == "compiled"
    assert one.cubin == two.cubin


def test_what_cutile_refuses_names_file_line_and_schedule(settings: Settings) -> None:
    job = jobs(EVEN, "sm_90")[0]
    line = "    i_chunk, i_heads, i_batch = ct.bid(0), ct.bid(1), ct.bid(2)\n"
    assert line in job.kernel.text
    text = job.kernel.text.replace(line, line + "    ct.no_such_function(i_chunk)\n")
    with pytest.raises(CompilerError, match="no_such_function") as caught:
        build.compile_jobs([replace(job, kernel=replace(job.kernel, text=text))], COMPILER, settings)
    error = caught.value
    assert error.where is not None
    assert error.where.path == "even/sm_90/mamba_chunk_scan_combined/short/cumsum.py"
    assert text.splitlines()[error.where.line - 1].strip() == error.found == "ct.no_such_function(i_chunk)"
    assert "head_tile " in str(error.next)


def test_the_archive_holds_them(settings: Settings, tmp_path: Path) -> None:
    value = spec.loads(EVEN, Path("even.yaml"))
    path = tmp_path / "cubins.tar.xz"
    rows = build.run([(value, quick(value, "sm_90"))], ["sm_90"], path, settings)
    opened = Archive(path)
    for row in rows:
        entry = opened.kernel(f"even/sm_90/mamba_chunk_scan_combined/{row.route}/{row.stage}")
        assert len(opened.cubin(entry)) == row.bytes
        assert entry.variants == ("aligned", "general")
