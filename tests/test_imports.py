"""Which way imports point, and what stays out of a process that does not need it.

A static graph sees every import statement; only a process shows which of them run.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"


def loaded(module: str) -> set[str]:
    """The top-level packages in sys.modules of a fresh interpreter that has imported `module` and nothing else."""
    command = [sys.executable, "-c", PROGRAM, module]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.partition(".")[0] for name in result.stdout.split()}


def test_import_contracts_hold():
    lint_imports = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint_imports, "--no-cache"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_check_sees_what_a_module_loads():
    assert {"torch", "numpy"} <= loaded("geocont.spectra")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("geocont", "torch transformers numpy pyarrow textual rich typer plotext"),
        ("geocont.errors", "torch transformers"),
        ("geocont.events", "torch transformers"),
        ("geocont.chance", "torch transformers"),
        ("geocont.claims", "torch transformers"),
        ("geocont.language_claims", "torch transformers"),
        ("geocont.runs", "torch transformers"),
        ("geocont.tables", "torch transformers pyarrow"),
        ("geocont.ablations.experiment", "torch transformers"),
        ("geocont.ablations.crew", "torch transformers numpy pyarrow textual rich typer plotext geocont_tui"),
        ("geocont.ablations.training", "transformers textual rich typer plotext geocont_tui"),
        ("geocont_tui.state", "torch transformers textual"),
        ("geocont_tui.cli", "torch transformers textual plotext pyarrow"),
    ],
)
def test_imports_nothing_heavy(module, absent):
    assert not loaded(module) & set(absent.split())
