"""The repository's own generated code is as it would be generated, and each kind of drift is found and named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import MODEL, SPEC, Outcome, Project

ROOT = Path(__file__).parent.parent
STATE = f"generated/{MODEL}/sm_90/mamba_chunk_scan_combined/long/state.py"


def test_this_repository_is_clean(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    outcome = project.run("generate", "--check")
    assert outcome.code == 0, outcome.out + outcome.err


def _red(project: Project, *arguments: str) -> Outcome:
    outcome = project.run("generate", "--check", *arguments)
    assert outcome.code == 1, outcome.out + outcome.err
    return outcome


def _mended(project: Project) -> None:
    assert project.run("generate").code == 0
    assert project.run("generate", "--check").code == 0


def test_clean(generated: Project) -> None:
    outcome = generated.run("generate", "--check")
    assert (outcome.code, outcome.err) == (0, "")
    assert "all as generated" in outcome.out


def test_stale_after_a_change_of_the_spec(generated: Project) -> None:
    generated.write(f"specs/{MODEL}.yaml", SPEC.replace("dt_bias: true", "dt_bias: false"))
    outcome = _red(generated)
    assert "long/cumsum.py: stale: its spec, lock or template changed" in outcome.out
    assert "-    dt_bias,  # [H]" in outcome.out
    assert outcome.out.endswith("mend it with: ssmgen generate\n")
    _mended(generated)


def test_stale_after_a_retune_is_a_small_diff(generated: Project) -> None:
    lock = generated.root / f"specs/{MODEL}.lock.yaml"
    lock.write_text(re.sub(r"(state: .*occupancy: )\d+", r"\g<1>5", lock.read_text()))
    drifts = json.loads(_red(generated, "--json").out)["drifts"]
    changed = [d for d in drifts if d["path"].endswith("state.py")]
    assert {d["kind"] for d in drifts} == {"stale"}
    for drift in changed:
        lines = [line for line in drift["diff"].splitlines()[2:] if line[:1] in "+-"]
        assert len(lines) == 4, "the inputs line and the constant, each once before and once after"
    _mended(generated)


def test_stale_by_another_version(generated: Project) -> None:
    from ssmgen.runtime.seal import UNSEALED, is_edited, seal

    file = generated.root / STATE
    text = file.read_text()
    body = text.split("body sha256:")[1][:16]
    other = seal(
        text.replace(f"body sha256:{body}", UNSEALED).replace("import cuda.tile as ct\n", "import cuda.tile\n")
    )
    assert not is_edited(other)
    file.write_text(other)
    assert "state.py: stale: made by another version of ssmgen" in _red(generated).out
    _mended(generated)


def test_missing(generated: Project) -> None:
    (generated.root / STATE).unlink()
    assert "state.py: missing" in _red(generated).out
    _mended(generated)


def test_missing_whole_model(generated: Project) -> None:
    shutil.rmtree(generated.root / "generated")
    assert re.search(r"generated: (\d+) missing, of \1 files", _red(generated).out)
    _mended(generated)


@pytest.mark.parametrize("path", [STATE, f"generated/{MODEL}/_forward.py", f"generated/{MODEL}/MANIFEST.json"])
def test_edited(generated: Project, path: str) -> None:
    file = generated.root / path
    text = file.read_text()
    file.write_text(text.replace("HEADS = 16", "HEADS = 32").replace('"schema": 1', '"schema": 2'))
    outcome = _red(generated, MODEL)
    assert f"{path}: edited: changed by hand" in outcome.out
    assert outcome.out.endswith(f"mend it with: ssmgen generate {MODEL}\n")
    _mended(generated)
    assert file.read_text() == text


def test_edited_header(generated: Project) -> None:
    file = generated.root / STATE
    file.write_text(file.read_text().replace("Do not edit", "Edit freely"))
    assert "edited: changed by hand" in _red(generated).out
    _mended(generated)


def test_edited_until_nothing_says_whose_it_is(generated: Project) -> None:
    file = generated.root / STATE
    file.write_text("import cuda.tile as ct\n")
    outcome = _red(generated)
    assert f"mend it with: rm {STATE} && ssmgen generate\n" in outcome.out
    refused = generated.run("generate")
    assert refused.code == 2
    assert "would be overwritten" in refused.err
    file.unlink()
    _mended(generated)


def test_merge_conflict_is_mended(generated: Project) -> None:
    file = generated.root / STATE
    file.write_text("<<<<<<< ours\n" + file.read_text())
    assert "edited" in _red(generated).out
    _mended(generated)


def test_orphan_file(generated: Project) -> None:
    orphan = generated.root / STATE.replace("/long/", "/longer/")
    orphan.parent.mkdir()
    shutil.copy(generated.root / STATE, orphan)
    assert "longer/state.py: orphan" in _red(generated).out
    _mended(generated)
    assert not orphan.parent.exists()


def test_orphan_model(generated: Project) -> None:
    (generated.root / "generated/old").mkdir()
    for name in ("MANIFEST.json", "__init__.py"):
        shutil.copy(generated.root / f"generated/{MODEL}/{name}", generated.root / f"generated/old/{name}")
    assert "generated/old/__init__.py: orphan" in _red(generated).out
    assert generated.run("generate", "--check", MODEL).code == 0, "a named spec does not speak for the others"
    _mended(generated)
    assert not (generated.root / "generated/old").exists()


def test_orphan_not_ours_is_never_deleted(generated: Project) -> None:
    notes = generated.write(f"generated/{MODEL}/notes.txt", "mine")
    outcome = _red(generated)
    assert "notes.txt: orphan: not made by ssmgen" in outcome.out
    assert outcome.out.endswith(f"mend it with: rm generated/{MODEL}/notes.txt\n")
    assert "left alone" in generated.run("generate").err
    assert notes.read_text() == "mine"


def test_what_is_not_the_generators_is_not_looked_at(generated: Project) -> None:
    generated.write("generated/report/index.html", "results")
    generated.write(f"generated/{MODEL}/__pycache__/x.pyc", "")
    generated.write("generated/handwritten/code.py", "")
    assert generated.run("generate", "--check").code == 0


def test_every_kind_at_once_needs_one_command(generated: Project) -> None:
    (generated.root / STATE).unlink()
    generated.write(f"specs/{MODEL}.yaml", SPEC.replace("heads: 16", "heads: 32"))
    shutil.copytree(generated.root / f"generated/{MODEL}", generated.root / "generated/old")
    output = (generated.root / STATE).with_name("output.py")
    output.write_text(output.read_text() + "# edited\n")
    report = json.loads(_red(generated, "--json").out)
    assert {d["kind"] for d in report["drifts"]} == {"stale", "missing", "orphan", "edited"}
    assert report["mend"] == "ssmgen generate"
    _mended(generated)
