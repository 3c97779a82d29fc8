"""Blocks of rows of a matrix in float32: of a size that stays near the core, all in the same memory.

Memory of each block's own would lie about in the heap after it: a few hundred MB for the matrices of an 8B model.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor


def laid_out_as(block: Float[Tensor, "r n"], scratch: Float[Tensor, " entries"]) -> Float[Tensor, "r n"]:
    """The beginning of `scratch`, of the block's shape, and by columns where the block lies by columns.

    A copy that turns what it copies is slow.
    """
    shape, entries = block.shape, scratch[: block.numel()]
    return entries.view(shape[::-1]).t() if block.stride(0) < block.stride(1) else entries.view(shape)


def in_float32(rows: Float[Tensor, "m n"], count: int) -> Iterator[Float[Tensor, "r n"]]:
    """Blocks of `count` rows, the last of fewer, each to be used before the next is asked for."""
    if rows.dtype == torch.float32:
        yield from torch.split(rows, count)
        return
    scratch = torch.empty(min(count, len(rows)) * rows.shape[1], device=rows.device)
    for block in torch.split(rows, count):
        yield laid_out_as(block, scratch).copy_(block)
