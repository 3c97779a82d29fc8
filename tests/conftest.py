"""Every test has a data folder of its own, so that no run of a test lands among the user's.

Programs that tests start obey an interrupt, even where the tests themselves run in the background of a shell, which
ignores it for what it starts.
"""

import os
import signal
from pathlib import Path

# The products of the tests are small: a second thread gains nothing, and waits for its turn where others work. NumPy's
# library reads this once, when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for name in ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(folder))
    return folder
