"""TensorGRaD for PyTorch, and Fourier neural operators that train with it.

    opt = libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=3e-4)    # in place of AdamW: a quarter of its state
    model = libtgrad.nn.convert(model)                                  # faster FNOs, in a model of neuraloperator

A neural operator, without PyTorch:

    a, u = libtgrad.generate("darcy", n=200, resolution=16, grid=31, folder="data")
    run = libtgrad.train({"fno.n_modes": [8, 8], "fno.hidden_channels": 16, "data.root": "data", "data.set": "darcy",
                          "data.train_resolution": 16, "data.test_resolutions": []}, "runs/darcy")
    u = libtgrad.Model.load(run).predict(a)

`python -m libtgrad` prints what this installation has. The manual is docs/python.md.
"""
import importlib.util
import sys
from typing import TYPE_CHECKING

try:
    from ._library import Error, lib, text

    __version__ = text(lib.tg_build().version)
except ImportError:
    if sys.argv[:1] != ["-m"]:  # true while `python -m libtgrad` imports this, which diagnoses
        raise

# Name -> module that defines it, None for a module; imported on first use.
_LAZY = {
    "Model": "models", "TestErrors": "models",
    "Run": "training", "train": "training",
    "Samples": "generators", "equations": "generators", "generate": "generators",
    "Plan": "overview", "Report": "overview", "analyze": "overview", "plan": "overview",
    "report": "overview",
    "TensorGRaD": "torch_optim",
    "nn": None,
    "param_groups": "torch_groups",
    "fno_tensorgrad_param_groups": "torch_neuralop", "from_neuralop_state": "torch_neuralop",
    "Normalized": "neuralop", "from_neuralop": "neuralop", "to_neuralop": "neuralop",
}

# Packages that a module needs: without them its names are not listed, and using one is an error.
_NEEDS = {"torch_optim": ["torch"], "torch_groups": ["torch"], "torch_neuralop": ["torch"], "nn": ["torch"],
          "neuralop": ["torch", "neuralop"]}
_missing = {name for names in _NEEDS.values() for name in names if not importlib.util.find_spec(name)}

__all__ = ["Error", "__version__",
           *[name for name, module in _LAZY.items() if not _missing.intersection(_NEEDS.get(module or name, []))]]

if TYPE_CHECKING:  # the same for type checkers and editors, which do not run the code below
    from . import nn as nn
    from .generators import Samples as Samples, equations as equations, generate as generate
    from .models import Model as Model, TestErrors as TestErrors
    from .neuralop import (Normalized as Normalized, from_neuralop as from_neuralop,
                           to_neuralop as to_neuralop)
    from .overview import (Plan as Plan, Report as Report, analyze as analyze, plan as plan,
                           report as report)
    from .torch_groups import param_groups as param_groups
    from .torch_neuralop import (fno_tensorgrad_param_groups as fno_tensorgrad_param_groups,
                                 from_neuralop_state as from_neuralop_state)
    from .torch_optim import TensorGRaD as TensorGRaD
    from .training import Run as Run, train as train
else:
    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'libtgrad' has no attribute '{name}'")
        try:
            value = importlib.import_module(f".{_LAZY[name] or name}", __name__)
            value = getattr(value, name) if _LAZY[name] else value
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(f"libtgrad.{name} needs PyTorch: pip install torch") from error
        globals()[name] = value
        return value


def __dir__():
    return sorted(__all__)
