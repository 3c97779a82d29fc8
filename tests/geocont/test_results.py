import numpy as np
import pytest
from geocont import results
from hypothesis import given
from hypothesis import strategies as st


def matrix_result(seed: int = 0) -> results.MatrixResult:
    generator = np.random.default_rng(seed)
    return results.MatrixResult(
        singular_values=(3.0, 2.0),
        left=results.Vectors.of(generator.standard_normal((2, 5)).astype(np.float32)),
        right=results.Vectors.of(generator.standard_normal((2, 7)).astype(np.float32)),
        gap=0.5,
        stable_rank=1.5,
        frobenius=4.0,
        v1_error_bound=1e-4,
        u1_error_bound=None,
        status="ok",
        fingerprint="f",
    )


PAIR = results.PairResult(v_gram=0.5, u_gram=None, v_gram_error=0.01, u_gram_error=None)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_stored_is_found_again(tmp_path):
    stored = matrix_result()
    results.store("abcd", stored, tmp_path)
    results.store("abce", PAIR, tmp_path)
    found = results.load("abcd", results.MatrixResult, tmp_path)
    assert found == stored
    assert found.right.rows().shape == (2, 7)
    assert found.right.rows().dtype == np.float32
    assert results.load("abce", results.PairResult, tmp_path) == PAIR


def test_no_vectors_keep_their_length(tmp_path):
    empty = results.Vectors.of(np.zeros((0, 9), np.float32))
    assert empty.rows().shape == (0, 9)


def test_what_is_not_there_is_none(tmp_path):
    assert results.load("abcd", results.MatrixResult, tmp_path) is None
    assert results.load("abcd", results.MatrixResult, tmp_path / "missing") is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other kind", "text", "folder"])
def test_what_is_damaged_does_not_count(tmp_path, damage):
    results.store("abcd", PAIR if damage == "other kind" else matrix_result(), tmp_path)
    [path] = files(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_bytes(b"not a result")
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    assert results.load("abcd", results.MatrixResult, tmp_path) is None


@given(content=st.binary(max_size=60))
def test_no_bytes_with_a_right_checksum_raise(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    path = results._path("abcd", folder)
    path.parent.mkdir()
    path.write_bytes(results._checksum(content) + content)
    assert results.load("abcd", results.MatrixResult, folder) is None


def test_a_result_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "ab").write_text("a file where the folder should be")
    with pytest.raises(FileExistsError):
        results.store("abcd", PAIR, tmp_path)
    assert files(tmp_path) == [tmp_path / "ab"]


def test_keys_depend_on_every_part():
    names = {
        results.key(*parts)
        for parts in (
            ("a", 1),
            ("a", 2),
            ("a", 1.5),
            ("b", 1),
            ("a",),
            ("a", None),
            (["a"], 1),
            (["a", "1"],),
            ("a", "1"),
        )
    }
    assert len(names) == 9
    assert results.key("a", ["b"], 0.005) == results.key("a", ["b"], 0.005)


def test_size_counts_the_files_and_is_zero_without_a_folder(tmp_path):
    assert results.size(tmp_path / "missing") == 0
    results.store("abcd", matrix_result(), tmp_path)
    results.store("efgh", PAIR, tmp_path)
    assert results.size(tmp_path) == sum(path.stat().st_size for path in files(tmp_path)) > 0


def test_the_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in results.folder().parents
    assert results.folder().name == "results"


def test_a_folder_that_cannot_be_looked_into_holds_nothing(tmp_path):
    nowhere = tmp_path / ("x" * 300)
    assert not results.exists("ab12", nowhere)
    assert results.size(nowhere) == 0
