"""Blocks of a matrix in float32: its rows, in one piece of memory."""

import pytest
import torch
from geocont import blocks
from hypothesis import given
from hypothesis import strategies as st


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 20),
    count=st.integers(1, 50),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    turned=st.booleans(),
    step=st.integers(1, 2),
)
def test_the_blocks_are_the_rows_in_float32(rows, columns, count, dtype, turned, step):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    matrix = (matrix.T.contiguous().T if turned else matrix)[::step]
    found = [block.clone() for block in blocks.in_float32(matrix, count)]
    assert torch.equal(torch.cat(found), matrix.float())
    assert all(block.dtype == torch.float32 for block in found)
    assert {len(block) for block in found[:-1]} <= {count}


@pytest.mark.parametrize("turned", [False, True])
def test_all_blocks_use_the_same_memory_and_lie_as_the_matrix_does(turned):
    matrix = torch.zeros(64, 32, dtype=torch.bfloat16)
    matrix = matrix.T.contiguous().T if turned else matrix
    found = list(blocks.in_float32(matrix, 16))
    assert len(found) == 4
    assert len({block.data_ptr() for block in found}) == 1
    assert all((block.stride(0) < block.stride(1)) is turned for block in found)


def test_what_is_float32_is_not_copied():
    matrix = torch.zeros(64, 32)
    assert [block.data_ptr() for block in blocks.in_float32(matrix, 16)] == [
        block.data_ptr() for block in matrix.split(16)
    ]
