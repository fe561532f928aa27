"""The examples run, as scripts and as notebooks, where what they need is installed."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from libtgrad import _library

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "python/examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
NEEDS = {"swap_optimizer": ("torch", "neuralop"), "native_to_torch": ("torch", "neuralop"),
         "convnet_images": ("torch",)}


def run(words, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1",
                   "OMP_WAIT_POLICY": "passive", "LIBTGRAD_LIBRARY": str(_library.path)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def test_notebooks_are_their_scripts():
    run([ROOT / "scripts/notebooks", "--check"], ROOT)
    assert NAMES == sorted(NEEDS)


# A notebook is its script, and both are run by Python: one of the two ways is enough for each.
@pytest.mark.parametrize("name", NAMES)
def test_example(name, tmp_path):
    need(*NEEDS[name])
    if name == "native_to_torch":
        need("nbconvert", "ipykernel")
        run(["-m", "nbconvert", "--to", "notebook", "--execute", EXAMPLES / f"{name}.ipynb", "--output-dir",
             tmp_path], tmp_path)
        page = (tmp_path / f"{name}.ipynb").read_text()
        assert "<progress" in page or "l2 at 64" in page
    else:
        assert "TensorGRaD" in run([EXAMPLES / f"{name}.py"], tmp_path)
