"""Each rule rejects what is just beyond it, and nothing that is just within."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ssmgen.check import gpu, physics, timers  # noqa: E402
from ssmgen.check.contracts.base import Work  # noqa: E402
from ssmgen.check.physics import Claim, impossible, known, suspicious  # noqa: E402
from ssmgen.check.timers import Clocks, disagreements  # noqa: E402
from ssmgen.check.verdict import Stage  # noqa: E402

H200 = known("NVIDIA H200")
# 100 us of reading and 10 us of products on an H200
WORK = Work(read=480_000_000, written=48_000_000, flops=9_890_000_000, matrix_dtype=torch.bfloat16)


def test_gpus_by_the_name_that_cuda_has_for_them():
    assert H200 is not None
    assert H200.bandwidth == 4.8e12
    assert known("NVIDIA H200 NVL") is None
    assert known("NVIDIA GeForce RTX 5090") is None
    assert all(each.flops.keys() == {"bfloat16", "float16", "float32", "float64"} for each in physics._KNOWN.values())


@pytest.mark.parametrize(("time_us", "work", "empty", "said"), [
    (99.8, WORK, 0.0, "480000000 bytes that must be read: H200 takes 100.00 us at 4.80 TB/s"),
    (100.0, WORK, 0.0, None),
    (9.9, replace(WORK, read=0), 0.0, "9890000000 FLOPs: H200 takes 10.00 us at 989 TFLOP/s of bfloat16"),
    (10.0, replace(WORK, read=0), 0.0, None),
    (19.9, replace(WORK, read=0, matrix_dtype=torch.float32), 0.0, "at 495 TFLOP/s of float32"),
    (20.0, replace(WORK, read=0, matrix_dtype=torch.float32), 0.0, None),
    (1.9, Work(0, 0, 0, torch.float32), 2.0, "less than a launch that does nothing takes"),
    (2.0, Work(0, 0, 0, torch.float32), 2.0, None),
])  # fmt: skip
def test_what_the_hardware_does_not_allow(time_us, work, empty, said):
    found = list(impossible(Claim(time_us, empty_us=empty), work, H200))
    assert len(found) == (said is not None), found
    assert all(said in f.what and f.stage == Stage.PHYSICS for f in found)


def test_writes_are_no_hard_floor():
    # they may still be in L2 when the clock stops
    assert not list(impossible(Claim(0.1), Work(0, 10**9, 0, torch.float32), H200))


MEASURED = replace(H200, copied=4.3e12, multiplied={"bfloat16": 790e12})


@pytest.mark.parametrize(("claim", "work", "said"), [
    (Claim(129.0), WORK, "4.09 TB/s, more than 95% of what a copy moves here (4.30)"),
    (Claim(129.5), WORK, None),
    (Claim(13.1), replace(WORK, read=0, written=0), "TFLOP/s, more than 95% of a matrix product's here (790)"),
    (Claim(13.3), replace(WORK, read=0, written=0), None),
    (Claim(200.0, baseline_us=2001.0), WORK, "10.0 times as fast as the baseline, more than 10 times"),
    (Claim(200.0, baseline_us=1999.0), WORK, None),
    (Claim(200.0, incumbent_us=601.0), WORK, "3.0 times as fast as the incumbent, more than 3 times"),
    (Claim(200.0, incumbent_us=599.0), WORK, None),
])  # fmt: skip
def test_what_has_to_be_seen_again(claim, work, said):
    found = list(suspicious(claim, work, MEASURED))
    assert len(found) == (said is not None), found
    assert all(said in f.what for f in found)
    # what was not measured is no reason
    if claim.baseline_us is None and claim.incumbent_us is None:
        assert not list(suspicious(claim, work, H200))


HONEST = Clocks(wall_us=3000.0, event_us=2990.0, span_us=2980.0)


@pytest.mark.parametrize(("clocks", "said"), [
    (HONEST, None),
    (replace(HONEST, event_us=None, span_us=None), None),
    (replace(HONEST, event_us=3150.0, span_us=None), None),
    (replace(HONEST, event_us=3200.0, span_us=None), "are forged"),
    (replace(HONEST, event_us=2110.0, span_us=None), None),
    (replace(HONEST, event_us=2090.0, span_us=None), "work beside their stream, or forged"),
    (replace(HONEST, event_us=100.0, span_us=None, host_bound=True), None),
    (replace(HONEST, event_us=100.0, span_us=100.0), "events say 100 us of a batch that took 3000 us"),
    (replace(HONEST, span_us=3400.0), "kernels are said to span 3400 us"),
    (replace(HONEST, event_us=2500.0, span_us=2900.0), "kernels span 2900 us where events say 2500 us"),
    (replace(HONEST, event_us=None, span_us=500.0), "the rest is not on the GPU"),
    # a batch of nearly nothing: what is between the clocks is more than it
    (Clocks(40.0, 15.0, 12.0), None),
    (Clocks(50.0, 15.0, None), "events say 15 us of a batch that took 50 us"),
])  # fmt: skip
def test_timers_that_disagree(clocks, said):
    found = [f.what for f in disagreements(clocks)]
    assert bool(found) == (said is not None), found
    assert said is None or any(said in what for what in found)


def test_a_timer_that_is_missing_is_said():
    assert timers.ran(HONEST, "torch.profiler") == {
        "wall clock": "ran", "events": "ran", "kernel spans": "ran: torch.profiler"
    }  # fmt: skip
    assert timers.ran(Clocks(1.0, None, None), "no GPU") == {
        "wall clock": "ran", "events": "not available: no GPU", "kernel spans": "not available: no GPU"
    }  # fmt: skip


def test_the_drivers_version_is_as_its_tool_says_or_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.driver_version() == "unknown"
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.159.04\necho 580.159.04\n")
    tool.chmod(0o755)
    assert gpu.driver_version() == "580.159.04"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpu.driver_version() == "unknown"
