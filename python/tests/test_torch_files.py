"""Files that torch.save wrote: every tensor as it was, and data to train on. Skipped where torch is missing."""
import numpy
import pytest

import libtgrad
from libtgrad import _arrays
from libtgrad.models import open_context

torch = pytest.importorskip("torch")


def read(path):
    return _arrays.read_archive(path, open_context())


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8", "bool", "complex64", "complex128"])
def test_tensors_of_a_kind(tmp_path, kind):
    saved = (10 * torch.randn(3, 4)).to(getattr(torch, kind))
    torch.save({"a": saved}, tmp_path / "a.pt")
    found = read(tmp_path / "a.pt")[0]["a"]
    assert found.dtype == saved.numpy().dtype and numpy.array_equal(found, saved.numpy())


def test_views_and_nesting(tmp_path):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    saved = {"base": base, "rows": base[1:3], "columns": base.T, "every_second": base[:, ::2],
             "inner": {"list": [base + 1, base + 2]}, "parameter": torch.nn.Parameter(base * 2),
             "epoch": 3, "name": "heat"}
    torch.save(saved, tmp_path / "all.pt")
    arrays, meta = read(tmp_path / "all.pt")
    for name in ("base", "rows", "columns", "every_second"):
        assert numpy.array_equal(arrays[name], saved[name].numpy()), name
    assert numpy.array_equal(arrays["inner/list/1"], base.numpy() + 2)
    assert numpy.array_equal(arrays["parameter"], 2 * base.numpy())
    assert meta["epoch"] == "3" and meta["name"] == "heat"


def test_state_dict(tmp_path):
    module = torch.nn.Linear(3, 2)
    torch.save(module.state_dict(), tmp_path / "linear.pt")
    arrays, _ = read(tmp_path / "linear.pt")
    assert numpy.array_equal(arrays["weight"], module.weight.detach().numpy())


def test_a_module_is_refused(tmp_path):
    torch.save(torch.nn.Linear(3, 2), tmp_path / "module.pt")
    with pytest.raises(libtgrad.Error, match="refers to torch.nn"):
        read(tmp_path / "module.pt")


def test_training(tmp_path):
    x = torch.randn(6, 8, 8)
    torch.save({"x": x, "y": x.roll(1, 1)}, tmp_path / "pairs.pt")
    config = {"data": {"train_file": str(tmp_path / "pairs.pt"), "test_resolutions": [], "batch_size": 3},
              "fno": {"n_modes": [4, 4], "hidden_channels": 4, "n_layers": 1}, "opt": {"n_epochs": 1}}
    run = libtgrad.train(config, tmp_path / "run", progress=False)
    assert numpy.isfinite(run.model().predict(x[:, None].numpy())).all()
