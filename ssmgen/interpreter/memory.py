"""Who wrote and who read each element of the arrays that kernels touch: shadows of torch's storages.

A `Memory` spans the launches of one call. What torch.empty hands out while it watches is unwritten until a kernel or
torch writes it; everything else counts as written. Blocks are numbered through all launches, so that an element's
last writer also says which launch it was in; nothing is ever reset.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ssmgen.interpreter.blocks import Block
from ssmgen.interpreter.faults import unsupported, violation

UNWRITTEN = 0
BEFORE = 1
"""Written, by nobody whose writes are watched."""
_MANY = -1

View = tuple[torch.Size, tuple[int, ...], int]
Part = tuple[Any, ...]


def _stamp(block: Block, atomic: bool) -> int:
    """A write by `block`, as shadows hold it: larger than any earlier launch's; the lowest bit says atomic."""
    return 2 * (block.number + 1) + atomic


class Access(NamedTuple):
    """`block` touches the elements at `part` of an array, called `name`, whose axes were put in `order`."""

    view: View
    order: Sequence[int]
    part: Part
    block: Block
    name: str
    atomic: bool = False
    """Indivisible, whatever order it keeps among blocks."""
    number: int = 0
    sees: frozenset[int] = frozenset()
    """Of a read: the block's number then, and those whose doings it came after."""


@dataclass
class Shadow:
    """The state of one storage's elements, `itemsize` bytes each."""

    tensor: torch.Tensor
    """Keeps the storage alive, so that its address stays its own."""
    itemsize: int
    writer: torch.Tensor
    fresh: bool
    last_launch: int = -1
    """The launch that last wrote here."""
    readers: torch.Tensor | None = None
    """Who read each element in `readers_launch`; made at the first write after a read."""
    readers_launch: int = -1
    reads: list[Access] = field(default_factory=list)
    reads_launch: int = -1
    released: dict[int, set[int]] = field(default_factory=dict)
    """By element, or -1 for all: the blocks whose writes whoever acquires here may rely on."""


class Memory:
    """The shadows of one call, and the numbers of its blocks."""

    def __init__(self) -> None:
        self.shadows: dict[int, Shadow] = {}
        self.blocks = 0
        self.indices: dict[int, tuple[int, ...]] = {}
        self.launch = 0
        self.first_block = 0

    def begin_launch(self) -> None:
        """What blocks did before is ordered before what they do from here on."""
        self.launch += 1
        self.indices.clear()
        self.first_block = self.blocks + 1
        for shadow in self.shadows.values():
            # what was written as a whole needs no look at every read
            shadow.fresh = shadow.fresh and bool((shadow.writer == UNWRITTEN).any())

    def new_number(self, index: tuple[int, ...]) -> int:
        """For the block at `index`: at its start, and for all that it does after a release."""
        self.blocks += 1
        self.indices[self.blocks] = index
        return self.blocks

    def shadow(self, tensor: torch.Tensor) -> Shadow:
        """The shadow of the storage that `tensor` lies in."""
        storage = tensor.untyped_storage()
        known = self.shadows.get(storage.data_ptr())
        if known is None:
            known = self._add(tensor, BEFORE)
        if known.itemsize != tensor.element_size():
            raise unsupported(f"one memory as elements of {known.itemsize} and of {tensor.element_size()} bytes")
        return known

    def allocate(self, tensor: torch.Tensor) -> None:
        """`tensor` is new memory that nobody wrote."""
        if tensor.untyped_storage().nbytes():
            self._add(tensor, UNWRITTEN)

    def write(self, tensor: torch.Tensor) -> None:
        """torch itself wrote `tensor`."""
        known = self.shadows.get(tensor.untyped_storage().data_ptr())
        if known is not None and tensor.numel():
            state = self.state(known.writer, view_of(tensor))
            state.copy_(state.clamp(min=BEFORE))

    def _add(self, tensor: torch.Tensor, state: int) -> Shadow:
        storage, size = tensor.untyped_storage(), tensor.element_size()
        writer = torch.full((storage.nbytes() // size,), state, dtype=torch.int64)
        shadow = Shadow(tensor, size, writer, state == UNWRITTEN)
        self.shadows[storage.data_ptr()] = shadow
        return shadow

    def unwritten(self, tensor: torch.Tensor) -> int:
        """How many elements of `tensor` nobody wrote."""
        known = self.shadows.get(tensor.untyped_storage().data_ptr())
        if known is None or not known.fresh or not tensor.numel():
            return 0
        missing = self.state(known.writer, view_of(tensor)) == UNWRITTEN
        return int(missing.sum())

    def state(self, of: torch.Tensor, view: View) -> torch.Tensor:
        """A shadow's elements as an array sees them."""
        return of.as_strided(*view)

    def read(self, shadow: Shadow, access: Access) -> None:
        """A block reads."""
        if shadow.fresh or shadow.last_launch == self.launch:
            state = self._at(shadow.writer, access)
            if shadow.fresh and bool((state == UNWRITTEN).any()):
                raise violation(
                    "unwritten",
                    f"{access.name}: {int((state == UNWRITTEN).sum())} of {state.numel()} elements read were never "
                    "written",
                    found=f"the first at {_first(state == UNWRITTEN, access.part)}",
                )
            if shadow.last_launch == self.launch:
                self._no_conflict(state, access, "an element is read that another block writes")
        if shadow.reads_launch != self.launch:
            shadow.reads.clear()
            shadow.reads_launch = self.launch
        shadow.reads.append(access._replace(number=access.block.number, sees=frozenset(access.block.sees)))
        if shadow.readers_launch == self.launch:
            assert shadow.readers is not None
            self._mark(shadow.readers, shadow.reads[-1])

    def store(self, shadow: Shadow, access: Access) -> None:
        """A block writes."""
        if shadow.last_launch == self.launch:
            self._no_conflict(self._at(shadow.writer, access), access, "two blocks store to one element")
        self._no_reader(shadow, access)
        self._put(shadow.writer, access, _stamp(access.block, access.atomic))
        shadow.last_launch = self.launch

    def update(self, shadow: Shadow, access: Access) -> None:
        """A block reads and writes at once."""
        touched = self._at(shadow.writer, access)
        if bool((touched == UNWRITTEN).any()):
            raise violation("unwritten", f"{access.name}: an atomic operation on memory that was never written")
        if shadow.last_launch == self.launch:
            self._no_conflict(touched, access, "an element is written by a store and by another's atomic")
        self._no_reader(shadow, access)
        self._put(shadow.writer, access, _stamp(access.block, atomic=True))
        shadow.last_launch = self.launch

    def _at(self, of: torch.Tensor, access: Access) -> torch.Tensor:
        return self.state(of, access.view).permute(tuple(access.order))[access.part]

    def _put(self, of: torch.Tensor, access: Access, value: Any) -> None:
        self.state(of, access.view).permute(tuple(access.order))[access.part] = value

    def _no_conflict(self, state: torch.Tensor, access: Access, what: str) -> None:
        """Refuse elements that another block wrote, unless this one acquired it or both are atomic."""
        block = access.block
        if int(state.max()) < 2 * (self.first_block + 1):
            return
        writer = state // 2 - 1
        others = (writer >= self.first_block) & (writer != block.number) & ~_in(writer, block.sees)
        if access.atomic:
            others &= state % 2 == 0
        if bool(others.any()):
            other = self.indices.get(int(writer[others][0]))
            at = _first(others, access.part)
            raise violation("race", f"{access.name}: {what}", found=f"the first at {at}, by block {other}")

    def _no_reader(self, shadow: Shadow, access: Access) -> None:
        """Refuse a write of elements that another block read, unless this one acquired it or both are atomic."""
        readers, block = self._readers(shadow), access.block
        if readers is None:
            return
        seen = self._at(readers, access)
        others = (seen != 0) & (seen != block.number) & ~_in(seen, block.sees)
        if bool(others.any()):
            # where several read, the marks tell no more than that
            exact = torch.zeros_like(readers, dtype=torch.bool)
            for read in shadow.reads:
                ordered = read.number in (block.number, *block.sees)
                if not ordered and not (access.atomic and read.atomic):
                    self._put(exact, read, True)
            others = self._at(exact, access)
        if bool(others.any()):
            raise violation(
                "race",
                f"{access.name}: an element is stored that another block reads",
                found=f"the first at {_first(others, access.part)}",
            )

    def _readers(self, shadow: Shadow) -> torch.Tensor | None:
        """Who read each element in this launch, None where nobody did."""
        if shadow.readers_launch != self.launch:
            if shadow.reads_launch != self.launch:
                return None
            shadow.readers = torch.zeros_like(shadow.writer)
            shadow.readers_launch = self.launch
            for read in shadow.reads:
                self._mark(shadow.readers, read)
        return shadow.readers

    def _mark(self, readers: torch.Tensor, read: Access) -> None:
        seen, number = self._at(readers, read), read.number
        # a reader that this one is ordered after can be forgotten: whoever is ordered after this one is after both
        last = (seen == 0) | (seen == number) | _in(seen, read.sees)
        self._put(readers, read, torch.where(last, number, _MANY))


def view_of(tensor: torch.Tensor) -> View:
    """Where a tensor's elements lie in its storage."""
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())


# what torch cannot put into places chosen by indices, it can as other types of their width
_PUT_AS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e8m0fnu: torch.uint8,
}


def put(into: torch.Tensor, part: Any, values: torch.Tensor) -> None:
    """Elements of one type put at `part`, slices or indices or a mask."""
    bits = _PUT_AS.get(into.dtype, into.dtype)
    into.view(bits)[part] = values.view(bits)


def elements(tensor: torch.Tensor) -> int:
    """How many elements of its dtype the storage of `tensor` has."""
    size: int = tensor.untyped_storage().nbytes() // tensor.element_size()
    return size


def _in(numbers: torch.Tensor, blocks: Set[int]) -> torch.Tensor:
    return (
        torch.isin(numbers, torch.tensor(sorted(blocks), dtype=numbers.dtype))
        if blocks
        else numbers.new_zeros(()).bool()
    )


def _first(where: torch.Tensor, part: Part) -> tuple[int, ...]:
    """The index of the first marked element, in the array."""
    if where.dim() == 0:
        at: list[int] = []
    else:
        flat = int(where.reshape(-1).to(torch.int8).argmax())
        at = [int(i) for i in torch.unravel_index(torch.tensor(flat), where.shape)]
    if all(isinstance(p, slice) for p in part):
        return tuple(a + p.start for a, p in zip(at, part, strict=False))
    return tuple(int(p[tuple(at)] if p.dim() else p) for p in part)
