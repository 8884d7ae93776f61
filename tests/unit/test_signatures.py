"""What kernels are compiled for: promises that every array torch.empty makes keeps, and that an archive can carry."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmgen import plans, signatures, spec
from ssmgen.ops.mamba_chunk_scan_combined import Shape
from ssmgen.plans import PLANS
from ssmgen.runtime import archive
from ssmgen.signatures import ALIGNED, GENERAL, VARIANTS, ArrayPromise, ScalarPromise
from ssmgen.stages.base import ITEM_BYTES, Array, Parameter, Scalar, round_up
from ssmgen.targets import target
from tests.conftest import MODEL, SPEC

NEMOTRON = Shape(heads=128, groups=8, head_dim=64, state=128)
X = Array("x", "bfloat16", ("B", "T", "H", "P"), "caller")
OUT = Array("out", "bfloat16", ("B", "T", "H", "P"), "result")
LOG_DECAY = Array("log_decay", "float32", ("B", "H", "padded"), "workspace")
CHUNK_STATES = Array("chunk_states", "bfloat16", ("B", "H", "chunks", "P", "S8"), "workspace")


def array(parameter: Parameter, variant: str, shape: Shape = NEMOTRON) -> ArrayPromise:
    promise = signatures.promises(parameter, variant, shape)
    assert isinstance(promise, ArrayPromise)
    return promise


def test_a_callers_array() -> None:
    assert array(X, ALIGNED) == ArrayPromise(
        dtype="bfloat16",
        ndim=4,
        base_divisible_by=16,
        stride_divisible_by=(8, 8, 8, 1),
        stride_constant=(None, None, None, 1),
        shape_divisible_by=(1, 1, 1, 1),
        shape_constant=(None, None, None, None),
        may_overlap_itself=True,
    )
    general = array(X, GENERAL)
    assert (general.base_divisible_by, general.stride_divisible_by) == (2, (1, 1, 1, 1))
    assert general.stride_constant == (None, None, None, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_host_allocates_is_promised_whole(variant: str) -> None:
    assert array(CHUNK_STATES, variant).shape_constant == (None, 128, None, 64, 128)
    assert array(CHUNK_STATES, variant).stride_divisible_by == (8, 8, 8, 8, 1)
    assert array(CHUNK_STATES, variant).base_divisible_by == 16
    assert not array(CHUNK_STATES, variant).may_overlap_itself
    assert array(LOG_DECAY, variant).shape_divisible_by == (1, 1, 16)
    assert array(LOG_DECAY, variant).stride_divisible_by == (4, 4, 1)


def test_an_odd_head_dim_promises_no_alignment_that_is_not_there() -> None:
    odd = Shape(heads=5, groups=1, head_dim=65, state=36)
    assert array(OUT, ALIGNED, odd).stride_divisible_by == (1, 1, 1, 1)
    # the workspace's rows are padded to 16 bytes
    assert array(CHUNK_STATES, ALIGNED, odd).shape_constant == (None, 5, None, 65, 40)
    assert array(CHUNK_STATES, ALIGNED, odd).stride_divisible_by == (8, 8, 8, 8, 1)


def test_a_scalar() -> None:
    scalar = Scalar("has_initial_states", "int32")
    assert signatures.promises(scalar, ALIGNED, NEMOTRON) == ScalarPromise("int32")
    assert signatures.as_json(scalar, NEMOTRON) == {"name": "has_initial_states", "dtype": "int32"}


@given(
    st.builds(
        lambda groups, per_group, p, s: Shape(heads=groups * per_group, groups=groups, head_dim=p, state=s),
        st.integers(1, 8),
        st.integers(1, 16),
        st.integers(1, 256),
        st.integers(1, 256),
    ),
    st.sampled_from(("bfloat16", "float16", "float32")),
    st.sampled_from(tuple(PLANS)),
    st.integers(1, 5000),
)
def test_contiguous_arrays_keep_every_promise(shape: Shape, dtype: str, plan_name: str, tokens: int) -> None:
    operator = spec.loads(SPEC, Path(f"{MODEL}.yaml")).operators.mamba_chunk_scan_combined
    assert operator is not None
    dtypes = operator.dtypes.model_copy(update={"x": dtype})
    operator = operator.model_copy(update={"shape": shape, "dtypes": dtypes})
    plan = PLANS[plan_name]
    schedule = plans.PlanSchedule(64, 2 if plan.segmented else 1)
    problem = plans.problem(MODEL, operator, target("sm_90"), plan, schedule)
    chunks = -(-tokens // problem.chunk)
    sizes = {"B": 2, "T": tokens, "H": shape.heads, "G": shape.groups, "P": shape.head_dim, "S": shape.state}
    sizes |= {"P8": round_up(shape.head_dim, 8), "S8": round_up(shape.state, 8), "segments": problem.segments}
    sizes |= {"chunks": chunks, "padded": chunks * problem.chunk, "N": 3, "N1": 4, "slots": chunks + 3, "met": 4}
    for parameter in (p for stage in plan.stages for p in stage.parameters(problem) if isinstance(p, Array)):
        lengths = [sizes[axis] for axis in parameter.axes]
        strides = [prod(lengths[i + 1 :]) for i in range(len(lengths))]
        for variant in VARIANTS if parameter.owner != "caller" else (GENERAL,):
            raw = signatures.as_json(parameter, shape)["promises"][variant]
            promise = archive.Promise(**{name: tuple(v) if isinstance(v, tuple) else v for name, v in raw.items()})
            assert promise.why_not(16 * 7, lengths, strides) is None, parameter


def test_the_archive_knows_the_same_variants() -> None:
    assert archive.VARIANTS == VARIANTS
    assert signatures.symbol("state", GENERAL) == "state_general"
    assert all(signatures.ALIGNMENT % width == 0 for width in ITEM_BYTES.values())
