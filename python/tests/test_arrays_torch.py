"""Models asked with arrays of other packages, where those are installed."""
import numpy
import pytest

X = numpy.random.default_rng(0).random((2, 1, 16, 16), numpy.float32)


def test_torch(run):
    torch = pytest.importorskip("torch")
    model = run.model()
    y = model.predict(torch.from_numpy(X))
    assert isinstance(y, torch.Tensor) and numpy.array_equal(y.numpy(), model.predict(X))
    half = torch.from_numpy(X).bfloat16()
    assert torch.equal(model.predict(half), model.predict(half.float()))
    class Own(torch.Tensor):
        pass

    own = model.predict(torch.from_numpy(X).requires_grad_().as_subclass(Own))
    assert isinstance(own, torch.Tensor) and torch.equal(own, y)
    strange = torch.from_numpy(X).permute(0, 1, 3, 2).double().requires_grad_()
    assert torch.equal(model.predict(strange), torch.from_numpy(model.predict(X.transpose(0, 1, 3, 2))))


def test_jax(run):
    jax = pytest.importorskip("jax")
    y = run.model().predict(jax.numpy.asarray(X))
    assert isinstance(y, jax.Array) and numpy.array_equal(numpy.asarray(y), run.model().predict(X))
    half = jax.numpy.asarray(X, jax.numpy.bfloat16)
    assert numpy.array_equal(run.model().predict(half), run.model().predict(numpy.asarray(half, numpy.float32)))


def test_cupy(run):
    cupy = pytest.importorskip("cupy")
    y = run.model().predict(cupy.asarray(X))
    assert isinstance(y, cupy.ndarray) and numpy.allclose(y.get(), run.model().predict(X))
