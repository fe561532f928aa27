"""Tests of the package in this tree, with the library of the build folder that the caller names."""
import faulthandler
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
faulthandler.enable()  # a crash of the interpreter has a traceback

CONFIG = {
    "fno": {"n_modes": [8, 8], "hidden_channels": 8, "n_layers": 2, "in_channels": 1, "out_channels": 1},
    "opt": {"name": "tensorgrad", "n_epochs": 2, "learning_rate": 2e-3, "training_loss": "l2"},
    "data": {"set": "darcy", "train_resolution": 16, "test_resolutions": [16], "batch_size": 8,
             "test_batch_sizes": 8},
    "distributed": {"seed": 0},
}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with a small training and test set."""
    import libtgrad
    folder = tmp_path_factory.mktemp("data")
    libtgrad.generate("darcy", 24, 16, grid=31, folder=folder)
    libtgrad.generate("darcy", 8, 16, grid=31, folder=folder, test=True)
    return folder


@pytest.fixture(scope="session")
def config(data):
    return {**CONFIG, "data": {**CONFIG["data"], "root": str(data)}}


@pytest.fixture(scope="session")
def run(config, tmp_path_factory):
    """A run of two epochs, for all tests that only look at it."""
    import libtgrad
    return libtgrad.train(config, tmp_path_factory.mktemp("run") / "darcy", progress=False)
