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


IMAGES = """
from geocont.ablations import training
from geocont.ablations.experiment import Data, Experiment, Variant
variant = Variant(name="one", width=16, depth=2, batch_size=8, steps=3)
list(training.train(Experiment(name="tiny", variants=(variant,), data=Data(images=50)), "cpu"))
"""
TEXTS = """
import os, pathlib, tempfile, threading
with tempfile.TemporaryDirectory() as name:
    os.environ["XDG_CACHE_HOME"] = name
    from geocont.ablations.experiment import LanguageExperiment, LanguageVariant, Text
    from geocont.ablations.language_training import LanguageWorkshop
    path = pathlib.Path(name) / "text.txt"
    path.write_text("a text of some words, none of them long. " * 200)
    variant = LanguageVariant(name="one", width=16, depth=2, sequence_length=8, batch_size=2, steps=3, warmup=1)
    experiment = LanguageExperiment(name="tiny", variants=(variant,), data=Text(path=str(path), vocabulary=270))
    workshop = LanguageWorkshop(experiment, "cpu")
    list(workshop.introduction())
    list(workshop.slices(workshop.stacks(experiment.networks), threading.Event()))
"""


@pytest.mark.parametrize("program", [IMAGES, TEXTS], ids=["images", "texts"])
def test_training_does_without_the_compiler_of_torch(program):
    """It would take as long to load as all the rest of torch, in every process that trains."""
    command = [sys.executable, "-c", program + "import sys; print(*sys.modules)"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    names = set(result.stdout.split())
    assert "torch.nn.functional" in names
    assert not {name for name in names if name.startswith(("torch._dynamo", "torch._inductor", "sympy"))}
