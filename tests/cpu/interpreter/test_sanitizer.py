"""What the sanitizer finds, each rule by bugs planted on a marked line, and what it must let pass."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from ssmgen import interpreter  # noqa: E402
from ssmgen.errors import InterpreterError, SanitizerError  # noqa: E402
from ssmgen.interpreter import access, files  # noqa: E402
from ssmgen.interpreter.launching import Launcher  # noqa: E402


class Case(NamedTuple):
    """A kernel body of arrays x, y (8 floats each), i (8 zeros of int32) and a number n (3), on a grid."""

    name: str
    body: str
    grid: int = 1


# each case is a line with its name, and a kernel's body; LOCK and UNLOCK stand for what follows
LOCK = """
while ct.atomic_cas(i, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
    pass
"""
UNLOCK = "ct.atomic_xchg(i, 0, 0, memory_order=ct.MemoryOrder.RELEASE)\n"
# two elements of a tile are inside its array, two are not
TAIL = "t = ct.load(x.slice(0, 0, 6), (1,), (4,))\n"
BUGS = {
    "outside": """
--- a tile behind the end
ct.load(x, (2,), (4,))  # here
--- a tile before the start
ct.load(x, (-1,), (4,))  # here
--- a store behind the end
ct.store(y, (n - 1,), ct.zeros((4,), ct.float32))  # here
--- one block too many, on 3 blocks
t = ct.load(x, (ct.bid(0),), (4,))  # here
--- an unchecked gather
ct.gather(x, ct.arange(16, dtype=ct.int32), check_bounds=False)  # here
--- an unchecked scatter
ct.scatter(x, ct.arange(4, dtype=ct.int32) - 1, 0.0, check_bounds=False)  # here
--- an unchecked tile that reaches over
ct.load(x.slice(0, 0, 6), (1,), (4,), check_bounds=False)  # here
--- a slice beyond its array
x.slice(0, 4, n * 3)  # here
--- a part of a tile
ct.load(x, (0,), (8,)).extract((n,), (4,))  # here
--- an empty array
ct.load(x.slice(0, n, n), (0,), (4,))  # here
""",
    "undetermined": """
--- stored
TAIL
ct.store(y, (0,), t)  # here
--- stored after a sum
TAIL
s = ct.sum(t)
ct.store(y, (0,), s)  # here
--- times zero
TAIL
t = t * ct.where(ct.arange(4, dtype=ct.int32) < 2, 1.0, 0.0)
ct.store(y, (0,), t)  # here
--- through a product
TAIL
p = t.reshape((1, 4)) @ ct.ones((4, 4), ct.float32)
ct.store(y, (0,), p.reshape((4,)))  # here
--- through the right of a product
TAIL
p = ct.mma(ct.ones((4, 1), ct.float32), t[None, :], ct.zeros((4, 4), ct.float32))
ct.store(y, (0,), p.extract((0, 2), (1, 1)).item())  # here
--- through an accumulator
TAIL
p = ct.mma(ct.ones((1, 4), ct.float32), ct.ones((4, 4), ct.float32), t[None, :])
ct.store(y, (0,), p.reshape((4,)))  # here
--- through a running total
TAIL
s = ct.cumsum(t)
ct.store(y, (1,), s.extract((0,), (2,)))
ct.store(y, (0,), s)  # here
--- reversed in a running total
TAIL
s = ct.cumsum(t, reverse=True)
ct.store(y, (0,), s.extract((0,), (1,)))  # here
--- through a scan
TAIL
s = ct.scan(t, 0, lambda a, b: a + b, 0.0)
ct.store(y, (0,), s)  # here
--- through a reduction
TAIL
s = ct.reduce(t, 0, lambda a, b: ct.maximum(a, b), 0.0)
ct.store(y, (0,), s)  # here
--- through an index of an extreme
TAIL
s = ct.argmax(ct.bitcast(t, ct.int32))
ct.store(i, (0,), s)  # here
--- through shapes
TAIL
t = ct.cat((t, t), 0).reshape((2, 4)).transpose()[:, None, :]
ct.store(y, (0,), ct.broadcast_to(t, (4, 1, 2)).permute((2, 0, 1)).reshape((8,)))  # here
--- inserted
TAIL
w = ct.zeros((8,), ct.float32).insert((1,), t)
ct.store(y, (0,), w)  # here
--- through a type
TAIL
ct.store(y, (0,), ct.exp(-abs(t.astype(ct.bfloat16).astype(ct.float32))))  # here
--- compared and chosen by
TAIL
ct.store(y, (0,), ct.where(t > 0, 1.0, 2.0))  # here
--- chosen wrongly
TAIL
ct.store(y, (0,), ct.where(ct.arange(4, dtype=ct.int32) < 3, t, 0.0))  # here
--- in a branch
TAIL
if ct.max(t) > 0:  # here
    pass
--- in an assertion
TAIL
ct.assert_(t > -1e30)  # here
--- as an index
at = ct.load(i.slice(0, 0, 6), (1,), (4,))
ct.gather(x, at)  # here
--- as an index of a store
at = ct.load(i.slice(0, 0, 6), (1,), (4,))
mask = ct.arange(4, dtype=ct.int32) > 1
ct.scatter(x, at + 1, 0.0, mask=mask)  # here
--- as a tile's index
at = ct.load(i.slice(0, 0, 1), (0,), (2,))
ct.load(x, (ct.extract(at, (1,), (1,)).item(),), (4,))  # here
--- as a mask
TAIL
ct.gather(x, ct.arange(4, dtype=ct.int32), mask=t > 0)  # here
--- as padding
TAIL
s = ct.gather(x, ct.arange(4, dtype=ct.int32) + 6, padding_value=t)
ct.store(y, (0,), s)  # here
--- scattered
TAIL
ct.scatter(y, ct.arange(4, dtype=ct.int32), t)  # here
--- added atomically
TAIL
ct.atomic_add(y, ct.arange(4, dtype=ct.int32), t)  # here
--- of a view
ct.store(y, (0,), x.slice(0, 0, 6).tiled_view(4).load(1))  # here
--- packed
TAIL
ct.pack_to_bytes(t)  # here
--- in a bound
at = ct.load(i.slice(0, 0, 1), (0,), (2,))
for k in range(ct.sum(at)):  # here
    pass
--- filled with
TAIL
ct.store(y, (0,), ct.full((4,), t.extract((3,), (1,)).item(), ct.float32))  # here
""",
    "race": """
--- two stores, on 2 blocks
ct.store(y, (0,), ct.full((4,), 1.0, ct.float32))  # here
--- a store and then a read, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
else:
    ct.load(y, (0,), (4,))  # here
--- a read and then a store, on 2 blocks
if ct.bid(0) == 0:
    ct.load(y, (0,), (4,))
else:
    ct.store(y, (0,), 1.0)  # here
--- a read and then a later store of a third, on 3 blocks
if ct.bid(0) < 2:
    ct.load(y, (0,), (4,))
else:
    ct.store(y, (1,), ct.zeros((2,), ct.float32))  # here
--- a neighbour's element, on 2 blocks
ct.load(y, (0,), (8,))  # here
ct.store(y, (ct.bid(0),), 1.0)
--- in place over a halo, on 3 blocks
s = ct.gather(y, ct.bid(0) * 2 + 2)
ct.store(y, (ct.bid(0),), ct.load(y, (ct.bid(0),), (2,)) + s)  # here
--- two scatters, on 2 blocks
ct.scatter(y, ct.arange(4, dtype=ct.int32) + ct.bid(0), ct.bid(0).astype(ct.float32))  # here
--- two values for one element
ct.scatter(y, ct.zeros((4,), ct.int32), ct.arange(4, dtype=ct.float32))  # here
--- a gather of what is stored, on 2 blocks
if ct.bid(0) == 0:
    ct.gather(y, ct.arange(4, dtype=ct.int32))
else:
    ct.scatter(y, 3, 1.0)  # here
--- a store beside an atomic, on 2 blocks
if ct.bid(0) == 0:
    ct.atomic_add(i, 0, 1)
else:
    ct.store(i, (0,), 1)  # here
--- an atomic beside a store, on 2 blocks
if ct.bid(0) == 0:
    ct.store(i, (0,), 1)
else:
    ct.atomic_add(i, 0, 1)  # here
--- an atomic and then a plain read, on 2 blocks
if ct.bid(0) == 0:
    ct.atomic_add(i, 0, 1)
else:
    ct.load(i, (0,), ())  # here
--- a plain read and then an atomic, on 2 blocks
if ct.bid(0) == 0:
    ct.load(i, (0,), ())
else:
    ct.atomic_add(i, 0, 1)  # here
--- a relaxed counter that orders nothing, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
ct.atomic_add(i, 0, 1, memory_order=ct.MemoryOrder.RELAXED)
if ct.bid(0) == 1:
    ct.load(y, (0,), ())  # here
--- a release without an acquire, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.atomic_add(i, 0, 1, memory_order=ct.MemoryOrder.RELEASE)
else:
    ct.atomic_add(i, 0, 1, memory_order=ct.MemoryOrder.RELAXED)
    ct.load(y, (0,), ())  # here
--- an acquire of another element, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.atomic_add(i, 0, 1)
else:
    ct.atomic_add(i, 1, 1)
    ct.load(y, (0,), ())  # here
--- after the release, on 2 blocks
LOCK
UNLOCK
ct.store(y, (ct.bid(0),), 1.0)
ct.load(y, (0,), ())  # here
--- through a slice, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y.slice(0, 2, 6), (0,), 1.0)
else:
    ct.load(y, (1,), (2,))  # here
--- through a view, on 2 blocks
y.tiled_view(4, traversal_steps=2).store(ct.bid(0), 1.0)  # here
--- a relaxed load of a plain store, on 2 blocks
if ct.bid(0) == 0:
    ct.store(i, (0,), 1)
else:
    ct.load(i, (0,), (), memory_order=ct.MemoryOrder.RELAXED)  # here
""",
    "tile": """
--- no power of two
ct.zeros((3,), ct.float32)  # here
--- known only at run time
ct.zeros((n,), ct.float32)  # here
--- an array's length
ct.load(x, (0,), (x.shape[0],))  # here
--- a step of a constant loop
for k in range(2):
    ct.zeros((1, 2)[k:] + (2,), ct.float32)  # here
--- of static_iter
for k in ct.static_iter(range(n)):  # here
    pass
--- ensure_constant
ct.ensure_constant(n)  # here
""",
    "promise": """
--- divisible by
ct.assume_divisible_by(n, 2)  # here
--- by zero
ct.assume_divisible_by(n, 0)  # here
""",
    "overflow": """
--- a sum
n * 2**30  # here
--- an index, on 2 blocks
ct.bid(0) * 2**20 * 2**20  # here
--- a tile
ct.full((4,), 2**31 - 1, ct.int32) + 1  # here
--- by zero
n // (n - 3)  # here
--- a loop that is not entered, whose next step wraps
for k in range(2**31 - 1, n):  # here
    pass
--- a loop whose last step wraps
for k in range(2**31 - 3, 2**31 - 1, n):  # here
    pass
""",
    "types": """
--- float stored as int
ct.store(i, (0,), ct.load(x, (0,), (4,)))  # here
--- half and bfloat16
ct.zeros((2,), ct.float16) + ct.zeros((2,), ct.bfloat16)  # here
--- a float index
ct.load(x, (n / 2,), (4,))  # here
--- steps backwards
for k in range(4, 0, -1):  # here
    pass
""",
    "shapes": """
--- broadcast
ct.zeros((4,), ct.float32) + ct.zeros((2,), ct.float32)  # here
--- a product
ct.zeros((2, 4), ct.float32) @ ct.zeros((2, 4), ct.float32)  # here
--- an index too many
ct.load(x, (0, 0), (2, 2))  # here
--- a branch on a tile
if ct.load(x, (0,), (4,)) > 0:  # here
    pass
--- an axis of the grid
ct.bid(3)  # here
--- an axis counted from the end
ct.num_blocks(-1)  # here
""",
    "order": """
--- a flag of a later block, on 2 blocks
if ct.bid(0) == 0:
    while ct.atomic_add(i, 0, 0) == 0:  # here
        pass
else:
    ct.atomic_add(i, 0, 1)
--- a flag that is loaded, on 2 blocks
if ct.bid(0) == 0:
    while ct.load(i, (0,), (), memory_order=ct.MemoryOrder.ACQUIRE) == 0:  # here
        pass
else:
    ct.store(i, (0,), 1, memory_order=ct.MemoryOrder.RELEASE)
--- a lock never given back, on 2 blocks
while ct.atomic_cas(i, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:  # here
    pass
""",
    "assertion": """
--- at run time
ct.assert_(ct.load(x, (0,), (8,)) < 7, 'too large')  # here
--- static
ct.static_assert(1 > 2, 'never')  # here
--- static of a value
ct.static_assert(n == 3)  # here
--- of a scalar
ct.assert_(n == 4)  # here
""",
}
FINE = {
    "outside": """
--- a tile partly outside
ct.load(x.slice(0, 0, 6), (1,), (4,), padding_mode=ct.PaddingMode.ZERO)
--- a store partly outside
ct.store(y.slice(0, 0, 6), (1,), ct.zeros((4,), ct.float32))
--- a checked gather
ct.gather(x, ct.arange(16, dtype=ct.int32) - 4)
--- an unchecked gather under its mask
at = ct.arange(16, dtype=ct.int32)
ct.gather(x, at, mask=at < 8, check_bounds=False)
--- an unchecked tile inside
ct.load(x, (1,), (4,), check_bounds=False)
--- an empty slice at the end
x.slice(0, 8, 8)
""",
    "undetermined": """
--- masked before use
TAIL
ct.store(y, (0,), ct.where(ct.arange(4, dtype=ct.int32) < 2, t, 0.0))
--- masked on the other side
TAIL
ct.store(y, (0,), ct.where(ct.arange(4, dtype=ct.int32) >= 2, 0.0, t * 2) + 1)
--- dropped by a store
TAIL
ct.store(y.slice(0, 0, 2), (0,), t)
--- dropped by a scatter
TAIL
ct.scatter(y, ct.arange(4, dtype=ct.int32), t, mask=ct.arange(4, dtype=ct.int32) < 2)
--- dropped by extract
TAIL
ct.store(y, (0,), t.extract((0,), (2,)))
--- never used
TAIL
--- overwritten
TAIL
ct.store(y, (0,), t.insert((1,), ct.zeros((2,), ct.float32)))
--- another row of a product
t = ct.load(x.slice(0, 0, 4), (0,), (8,)).reshape((2, 4))
p = ct.mma(t, ct.ones((4, 4), ct.float32), ct.zeros((2, 4), ct.float32))
ct.store(y, (0,), p.extract((0, 0), (1, 4)).reshape((4,)))
--- before it enters a running total
TAIL
ct.store(y, (0,), ct.cumsum(t).extract((0,), (2,)))
--- integers masked after sums
at = ct.load(i.slice(0, 0, 6), (1,), (4,))
at = ct.cumsum(abs((at + 1) * 7 - (-at)))
ct.store(i, (1,), ct.where(ct.arange(4, dtype=ct.int32) < 2, at, 0))
b = ct.load(i.slice(0, 0, 1), (0,), (2,)).extract((1,), (1,)).item() * 3 + 1
--- masked as an index
at = ct.load(i.slice(0, 0, 6), (1,), (4,))
ct.gather(x, at, mask=ct.arange(4, dtype=ct.int32) < 2)
--- padding that is not taken
TAIL
s = ct.gather(x, ct.arange(4, dtype=ct.int32), padding_value=t)
ct.store(y, (0,), s)
--- with a mode
ct.store(y, (0,), ct.load(x.slice(0, 0, 6), (1,), (4,), padding_mode=ct.PaddingMode.NEG_INF))
--- a whole tile
ct.store(y, (0,), ct.load(x, (1,), (4,)))
""",
    "race": """
--- each its own, on 4 blocks
ct.store(y, (ct.bid(0),), ct.load(y, (ct.bid(0),), (2,)) + 1)
--- two read one, on 4 blocks
ct.store(y, (ct.bid(0),), ct.sum(ct.load(x, (0,), (8,))))
--- one block alone
ct.store(y, (0,), 1.0)
ct.load(y, (0,), ())
ct.store(y, (0,), 2.0)
--- only atomics, on 3 blocks
ct.atomic_add(i, ct.arange(4, dtype=ct.int32), 1)
--- one value for one element
ct.scatter(y, ct.zeros((4,), ct.int32), 1.5)
--- under a lock, on 4 blocks
LOCK
ct.store(y, (0,), ct.load(y, (0,), (4,)) + 1)
UNLOCK
--- under a lock, by stores alone, on 3 blocks
LOCK
ct.store(y, (0,), 1.0)
UNLOCK
--- after a counter, on 4 blocks
ct.store(y, (ct.bid(0),), 1.0)
if ct.atomic_add(i, 0, 1) == ct.num_blocks(0) - 1:
    ct.store(y, (0,), ct.load(y, (0,), (4,)) * 2)
--- the last one clears what all read, on 3 blocks
ct.load(y, (0,), (8,))
if ct.atomic_add(i, 0, 1) == ct.num_blocks(0) - 1:
    ct.store(y, (0,), ct.zeros((8,), ct.float32))
--- released by a store, acquired by a load, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.store(i, (0,), 1, memory_order=ct.MemoryOrder.RELEASE)
else:
    while ct.load(i, (0,), (), memory_order=ct.MemoryOrder.ACQUIRE) == 0:
        pass
    ct.store(y, (0,), ct.load(y, (0,), ()) + 1)
--- released by an exchange, acquired by a load, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.atomic_xchg(i, 0, 1)
else:
    while ct.load(i, (0,), (), memory_order=ct.MemoryOrder.ACQUIRE) == 0:
        pass
    ct.load(y, (0,), ())
--- released by a store, acquired by an exchange, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.store(i, (0,), 1, memory_order=ct.MemoryOrder.RELEASE)
else:
    ct.atomic_add(i, 0, 0)
    ct.load(y, (0,), ())
--- acquired of many at once, on 2 blocks
at = ct.arange(4, dtype=ct.int32)
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.atomic_add(i, 2, 1)
else:
    ct.atomic_add(i, at, 0)
    ct.load(y, (0,), ())
--- handed on by a third, on 3 blocks
if ct.bid(0) == 0:
    ct.store(y, (0,), 1.0)
    ct.atomic_add(i, 0, 1)
if ct.bid(0) == 1:
    ct.atomic_add(i, 0, 1)
    ct.atomic_add(i, 1, 1)
if ct.bid(0) == 2:
    ct.atomic_add(i, 1, 1)
    ct.load(y, (0,), ())
--- relaxed on both sides, on 3 blocks
ct.load(i, (0,), (), memory_order=ct.MemoryOrder.RELAXED)
ct.store(i, (0,), 1, memory_order=ct.MemoryOrder.RELAXED)
ct.atomic_add(i, 0, 1, memory_order=ct.MemoryOrder.RELAXED)
--- other elements of one array, on 2 blocks
if ct.bid(0) == 0:
    ct.store(y.slice(0, 0, 4), (0,), 1.0)
else:
    ct.load(y, (1,), (4,))
""",
    "tile": """
--- a constant of the module
ct.zeros((SIZE, len((1, 2)), 1 << 3), ct.float32)
--- a constant loop
for k in ct.static_iter(range(1, 3)):
    ct.zeros((k,), ct.float32)
--- a tile's own size
t = ct.zeros((8,), ct.float32)
ct.zeros((t.shape[0] // 2, t.ndim), ct.float32)
--- ensure_constant
ct.zeros((ct.ensure_constant(SIZE),), ct.float32)
""",
    "promise": """
--- divisible by
assert ct.assume_divisible_by(n + 1, 4) == 4
""",
    "overflow": """
--- the largest
n + (2**31 - 4)
--- unsigned
ct.full((4,), 255, ct.uint8) + 1
--- in 64 bits
ct.full((4,), 2**31 - 1, ct.int64) * 4
n.astype(ct.int64) * 2**40
--- a range to the end
for k in range(2**31 - 3, 2**31 - 1):
    pass
--- a range to an int64
for k in range(ct.int64(2**31), ct.int64(2**31) + 2):
    pass
""",
    "types": """
--- float16 stored as float32
ct.store(y, (0,), ct.zeros((4,), ct.float16))
--- an int as a float
ct.store(y, (0,), 1)
""",
    "shapes": """
--- broadcast
ct.zeros((4, 1), ct.float32) + ct.zeros((2,), ct.float32)
--- a branch on one
if ct.load(x, (0,), ()) > 0:
    pass
""",
    "order": """
--- a flag of an earlier block, on 2 blocks
if ct.bid(0) == 1:
    while ct.atomic_add(i, 0, 0) == 0:
        pass
else:
    ct.atomic_add(i, 0, 1)
--- many that change something
for k in range(300):
    ct.atomic_add(i, 0, 1)
""",
    "assertion": """
--- at run time
ct.assert_(ct.load(x, (0,), (8,)) < 8)
--- static
ct.static_assert(SIZE == 4, 'never')
""",
}


def cases(texts: dict[str, str]) -> list[Any]:
    """The cases of all rules, as parameters."""
    found = []
    for rule, text in texts.items():
        for part in text.split("--- ")[1:]:
            title, _, body = part.partition("\n")
            name, _, blocks = title.removesuffix(" blocks").partition(", on ")
            for word, stands_for in (("UNLOCK\n", UNLOCK), ("LOCK\n", LOCK), ("TAIL\n", TAIL)):
                body = body.replace(word, stands_for)
            found.append(pytest.param(rule, Case(name, body, int(blocks or 1)), id=f"{rule}: {name}"))
    return found


def kernel(case: Case) -> str:
    return "SIZE = 4\n@ct.kernel\ndef kernel(x, y, i, n):\n" + textwrap.indent(case.body, "    ") + "\n"


def operands() -> tuple[Any, ...]:
    return torch.arange(8.0), torch.zeros(8), torch.zeros(8, dtype=torch.int32), 3


@pytest.mark.parametrize(("rule", "case"), cases(BUGS))
def test_a_planted_bug_is_found_at_its_line(run: Any, rule: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_SPINS", 100)
    error = run.error(kernel(case), *operands(), grid=(case.grid,))
    assert error.rule == rule, str(error)
    assert error.where is not None
    assert f"[{rule}]" in str(error)
    assert f"{run.file}:{error.where.line}" in str(error)


@pytest.mark.parametrize(("rule", "case"), cases(FINE))
def test_what_only_looks_like_a_bug_passes(run: Any, rule: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_SPINS", 100)
    run(kernel(case), *operands(), grid=(case.grid,))


def test_every_rule_has_both() -> None:
    elsewhere = {"unwritten", "alias"}
    assert set(BUGS) | elsewhere == set(FINE) | elsewhere == set(interpreter.RULES)


def test_an_error_names_kernel_and_block(run: Any) -> None:
    error = run.error(kernel(Case("", "ct.load(x, (ct.bid(0),), (4,))  # here")), *operands(), grid=(3, 2))
    assert "(kernel kernel, block (2, 0, 0))" in str(error)


def test_an_error_in_a_helper_is_at_the_helpers_line(run: Any) -> None:
    text = """
    def helper(x, at):
        return ct.load(x, (at,), (4,))  # here

    @ct.kernel
    def kernel(x):
        helper(x, 7)
    """
    assert run.error(text, torch.zeros(8)).rule == "outside"


def test_an_undetermined_element_names_its_load(run: Any) -> None:
    error = run.error(kernel(Case("", TAIL + "ct.store(y, (0,), t)  # here")), *operands())
    assert error.where is not None
    assert f"{run.file}:{error.where.line - 1}" in str(error.found)


def test_the_next_launch_starts_with_a_clean_slate(run: Any) -> None:
    with pytest.raises(SanitizerError):
        run(kernel(Case("", "ct.load(x, (9,), (4,))")), *operands())
    module = run(kernel(Case("", "ct.store(y, (ct.bid(0),), 1.0)")), *operands(), grid=(2,))
    with pytest.raises(InterpreterError, match=r"ct\.bid\(\) outside a kernel"):
        module.ct.bid(0)


# --- memory that nobody wrote

COPY = """
@ct.kernel
def kernel(x, y):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (4,)))  # here
"""


def test_unwritten_memory_is_not_read(run: Any) -> None:
    with interpreter.watch():
        error = run.error(COPY, torch.empty(8), torch.zeros(8), grid=(2,))
    assert error.rule == "unwritten"
    assert "4 of 4" in str(error)


@pytest.mark.parametrize("make", ["empty_like", "new_empty", "empty_strided", "new_empty_strided", "pinned"])
def test_however_it_was_made(run: Any, make: str) -> None:
    like = torch.zeros(8)
    with interpreter.watch():
        x = {
            "empty_like": lambda: torch.empty_like(like), "new_empty": lambda: like.new_empty(8),
            "empty_strided": lambda: torch.empty_strided((8,), (1,)), "pinned": lambda: torch.empty((4, 2)).view(8),
            "new_empty_strided": lambda: like.new_empty_strided((8,), (1,)),
        }[make]()  # fmt: skip
        assert run.error(COPY, x, torch.zeros(8)).rule == "unwritten"


def test_one_unwritten_element_is_enough(run: Any) -> None:
    with interpreter.watch():
        x = torch.empty(8)
        x[:6] = 1
        x[7] = 1
        run(COPY, x, torch.zeros(8))
        error = run.error(COPY, x, torch.zeros(8), grid=(2,))
    assert error.rule == "unwritten"
    assert "1 of 4" in str(error)
    assert "(6,)" in str(error.found)


def test_no_atomic_operation_on_what_nobody_wrote(run: Any) -> None:
    text = "@ct.kernel\ndef kernel(x):\n    ct.atomic_add(x, 0, 1.0)  # here\n"
    with interpreter.watch():
        assert run.error(text, torch.empty(8)).rule == "unwritten"


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.fill_(1),
        lambda x: x.copy_(torch.ones(8)),
        lambda x: x.__setitem__(slice(None), 1),
        lambda x: torch.add(torch.ones(8), 1, out=x),
        lambda x: x.view(2, 4).zero_(),
        lambda x: torch._foreach_add_([x], 1.0),
        lambda x: x.T.normal_(),
    ],
)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_what_torch_wrote_is_written(run: Any, write: Any) -> None:
    with interpreter.watch():
        x = torch.empty(8)
        write(x)
        run(COPY, x, torch.zeros(8), grid=(2,))


def test_what_an_earlier_launch_wrote_is_written(run: Any) -> None:
    with interpreter.watch() as memory:
        x, y = torch.empty(8), torch.empty(8)
        assert memory.unwritten(x) == 8
        run(COPY, torch.arange(8.0), x, grid=(2,))
        assert memory.unwritten(x) == 0
        run(COPY, x, y)
        assert memory.unwritten(y) == memory.unwritten(y[4:]) == 4
        assert memory.unwritten(y[:4]) == 0
    assert y[:4].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_what_this_launch_wrote_is_written(run: Any) -> None:
    text = "@ct.kernel\ndef kernel(x):\n    ct.store(x, (0,), 1.0)\n    ct.load(x, (0,), ())\n"
    with interpreter.watch():
        run(text, torch.empty(8))


def test_outside_of_a_watch_everything_counts_as_written(run: Any) -> None:
    run(COPY, torch.empty(8), torch.empty(8))


def test_a_watch_within_a_watch_adds_nothing() -> None:
    with interpreter.watch() as outer, interpreter.watch() as inner:
        assert inner is outer
        assert outer.unwritten(torch.empty(4)) == 4


def test_one_launch_is_ordered_before_the_next(run: Any) -> None:
    with interpreter.watch():
        x, y = torch.zeros(8), torch.zeros(8)
        module = run(COPY, x, y, grid=(2,))
        module.ct.launch(None, (2,), module.kernel, (y, x))
        module.ct.launch(None, (2,), module.kernel, (x, y))


def test_what_an_earlier_launch_wrote_is_read_beside_what_this_one_writes(run: Any) -> None:
    text = """
    @ct.kernel
    def kernel(y):
        ct.store(y, (ct.bid(0) * 4,), 1.0)
        ct.load(y, (ct.bid(0),), (4,))
    """
    with interpreter.watch():
        y = torch.empty(8)
        run(COPY, torch.zeros(8), y, grid=(2,))
        run(text, y, grid=(2,))


def test_what_an_earlier_launch_read_is_stored_to(run: Any) -> None:
    whole = "@ct.kernel\ndef kernel(y):\n    ct.load(y, (0,), (8,))\n"
    own = "@ct.kernel\ndef kernel(y):\n    ct.store(y, (ct.bid(0),), ct.load(y, (ct.bid(0),), (4,)) + 1)\n"
    with interpreter.watch():
        y = torch.zeros(8)
        for text in (whole, own, whole, own):
            run(text, y, grid=(2,))
    assert y.tolist() == [2.0] * 8


def test_an_array_is_not_seen_as_elements_of_two_sizes(run: Any) -> None:
    x = torch.zeros(8)
    with pytest.raises(InterpreterError, match="elements of 4 and of 2 bytes"):
        run("@ct.kernel\ndef kernel(x, y):\n    pass\n", x, x.view(torch.bfloat16))


# --- arrays that share memory

BASE = torch.zeros(16)
STORE = """
@ct.kernel
def kernel(x, y):
    ct.load(x, (0,), (4,))
    ct.store(y, (0,), 1.0)  # here
"""


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (BASE, BASE),
        (BASE[:8], BASE[7:]),
        (BASE[::2], BASE[::4]),
        (BASE, BASE.view(2, 8)[1]),
        (BASE.view(4, 4)[:, 1], BASE[4:8]),
    ],
    ids=["the same", "by one element", "strided", "a row", "a column"],
)
def test_arrays_that_overlap(run: Any, x: Any, y: Any) -> None:
    error = run.error(STORE, x, y)
    assert (error.rule, "x" in error.what, "y" in error.what) == ("alias", True, True)
    assert run.error(STORE, y, x).rule == "alias"


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (BASE[:8], BASE[8:]),
        (BASE[::2], BASE[1::2]),
        (BASE.view(4, 4)[:, 1], BASE.view(4, 4)[:, 2]),
        (BASE, torch.zeros(16)),
        (BASE[:0], BASE),
    ],
    ids=["halves", "even and odd", "columns", "apart", "an empty one"],
)
def test_views_of_one_storage_that_are_apart(run: Any, x: Any, y: Any) -> None:
    run(STORE.replace("ct.load(x", "x.shape[0] < 4 or ct.load(x"), x, y)


def test_one_tensor_read_under_two_names(run: Any) -> None:
    text = "@ct.kernel\ndef kernel(b, c, y):\n    ct.store(y, (0,), ct.load(b, (0,), (4,)) * ct.load(c, (0,), (4,)))\n"
    run(text, BASE, BASE, torch.zeros(8))


@pytest.mark.parametrize(
    "statement",
    [
        "ct.scatter(y, 0, 1.0)",
        "ct.atomic_add(y, 0, 1.0)",
        "y.tiled_view(2).store(0, 1.0)",
        "y.tiled_view(2).atomic_store_add(0, 1.0)",
        "ct.store(y.slice(0, 0, 4), (0,), 1.0)",
    ],
)
def test_every_store_to_shared_memory(run: Any, statement: str) -> None:
    assert run.error(f"@ct.kernel\ndef kernel(x, y):\n    {statement}  # here\n", BASE, BASE).rule == "alias"


def test_an_array_of_a_list_overlaps_too(run: Any) -> None:
    text = "@ct.kernel\ndef kernel(x, many):\n    ct.store(many[1], (0,), 1.0)  # here\n"
    run(text, BASE, [BASE, torch.zeros(8)])
    assert run.error(text, BASE, [torch.zeros(8), BASE]).rule == "alias"


def test_an_array_whose_elements_share_memory_is_not_stored_to(run: Any) -> None:
    text = "@ct.kernel\ndef kernel(y):\n    ct.load(y, (0, 0), (2, 2))\n    ct.store(y, (0, 0), 1.0)  # here\n"
    assert run.error(text, torch.zeros(4, 1).expand(4, 4)).rule == "alias"
    run(text, torch.zeros(1, 4).expand(1, 4))


# --- what kernels were compiled under


def promised(**changes: Any) -> dict[str, Any]:
    general = {
        "base_divisible_by": 16, "shape_constant": [None, None], "shape_divisible_by": [1, 8],
        "stride_constant": [None, 1], "stride_divisible_by": [8, 1],
    }  # fmt: skip
    return {"name": "x", "dtype": "float32", "ndim": 2, "promises": {"general": general | changes}}


PACKAGE = """
import cuda.tile as ct
@ct.kernel
def kernel(x, n: ct.Constant):
    pass
"""
STORAGE = torch.zeros(8 * 24 + 16)


@pytest.mark.parametrize(
    ("tensor", "fits"),
    [
        (STORAGE[: 8 * 16].view(8, 16), True),
        (STORAGE[: 8 * 24].view(8, 24)[:, :16], True),
        (STORAGE[:16].view(16).as_strided((1, 16), (3, 1)), True),
        (STORAGE[: 8 * 16].view(8, 16).bfloat16(), False),
        (STORAGE[:16], False),
        (STORAGE[1 : 8 * 16 + 1].view(8, 16), False),
        (STORAGE[: 8 * 12].view(8, 12), False),
        (STORAGE[: 8 * 16].view(16, 8).T, False),
        (STORAGE.as_strided((8, 16), (20, 1)), False),
        (STORAGE.as_strided((8, 8), (16, 2)), False),
    ],
    ids=[
        "as promised",
        "rows apart",
        "one row",
        "type",
        "axes",
        "address",
        "length",
        "transposed",
        "rows",
        "elements apart",
    ],
)
def test_promises(tensor: Any, fits: bool) -> None:
    launcher = Launcher({"__init__.py": [promised(), {"name": "n"}]})
    package = files.load_package({"__init__.py": PACKAGE}, "promising", launcher)
    if fits:
        package.ct.launch(None, (1,), package.kernel, (tensor, 1))
    else:
        with pytest.raises(SanitizerError) as caught:
            package.ct.launch(None, (1,), package.kernel, (tensor, 1))
        assert (caught.value.rule, caught.value.what.startswith("[promise] x")) == ("promise", True)


def test_a_promised_length(tmp_path: Path) -> None:
    launcher = Launcher({"__init__.py": [promised(shape_constant=[8, None]), {"name": "n"}]})
    package = files.load_package({"__init__.py": PACKAGE}, "promising", launcher)
    package.ct.launch(None, (1,), package.kernel, (torch.zeros(8, 16), 1))
    with pytest.raises(SanitizerError, match="the length of axis 0 is 4"):
        package.ct.launch(None, (1,), package.kernel, (torch.zeros(4, 16), 1))
