"""Networks of neuraloperator and models of ours: the same outputs, both ways."""
import subprocess

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("neuralop")
from neuralop.models import FNO, TFNO  # noqa: E402

import libtgrad  # noqa: E402
from libtgrad._program import find_program  # noqa: E402

SMALL = {"in_channels": 2, "out_channels": 3, "hidden_channels": 8, "n_layers": 2}
NETWORKS = [
    ((12,), {}, (32,)),
    ((8, 6), {}, (16, 12)),
    ((4, 4, 6), {"n_layers": 1}, (8, 6, 10)),
    ((8, 8), {"norm": "group_norm", "channel_mlp_skip": "linear"}, (16, 16)),
    ((8, 8), {"norm": "instance_norm", "fno_skip": "identity", "channel_mlp_skip": "identity"}, (16, 16)),
    ((8, 8), {"domain_padding": 0.25}, (16, 16)),
    ((8, 8), {"stabilizer": "tanh", "positional_embedding": None, "channel_mlp_expansion": 1.0}, (16, 16)),
    ((8, 8), {"lifting_channel_ratio": 3, "projection_channel_ratio": 4, "factorization": "dense"}, (16, 16)),
    ((12,), {"complex_data": True}, (32,)),
    ((8, 8), {"preactivation": True, "norm": "group_norm", "domain_padding": [0.25, 0.5]}, (16, 16)),
    ((8, 8), {"non_linearity": torch.nn.functional.silu}, (16, 16)),
    ((8, 8), {"factorization": "tucker", "rank": 0.4, "fixed_rank_modes": [0]}, (16, 16)),
    ((8, 8), {"factorization": "tt", "rank": 0.4, "implementation": "reconstructed"}, (16, 16)),
    ((8, 8), {"factorization": "tucker", "rank": 1.0}, (16, 16)),
    ((8, 8), {"factorization": "tucker", "rank": 1}, (16, 16)),  # of every mode, not a share
    ((12,), {"factorization": "tt", "rank": 1}, (32,)),
    ((8, 8), {"separable": True, "non_linearity": torch.tanh}, (16, 16)),
    ((8, 8), {"non_linearity": torch.nn.GELU()}, (16, 16)),
    ((8, 8), {"non_linearity": torch.relu}, (16, 16)),
]


def pair(modes, arguments, grid):
    torch.manual_seed(0)
    network = FNO(n_modes=modes, **{**SMALL, **arguments}).eval()
    for parameter in network.parameters():  # norms and gates, which begin as ones and zeros, too
        parameter.data += 0.05 * torch.randn_like(parameter)
    kind = torch.complex64 if arguments.get("complex_data") else torch.float32
    return network, torch.randn(3, SMALL["in_channels"], *grid, dtype=kind)


def difference(a, b):
    return (torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)).item()


@pytest.mark.parametrize("modes, arguments, grid", NETWORKS)
def test_both_ways(modes, arguments, grid):
    network, x = pair(modes, arguments, grid)
    with torch.no_grad():
        expected = network(x)
    model = libtgrad.from_neuralop(network)
    assert difference(model.predict(x), expected) < 1e-6
    back = libtgrad.to_neuralop(model)
    assert isinstance(back, FNO)
    with torch.no_grad():
        assert difference(back(x), expected) < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), network.parameters()))


@pytest.mark.parametrize("arguments", [{}, {"factorization": "CP", "rank": 0.05, "norm": "group_norm"}])
def test_tfno(arguments):
    network, x = TFNO((8, 8), 2, 3, hidden_channels=8, n_layers=2, **arguments).eval(), torch.randn(3, 2, 16, 16)
    with torch.no_grad():
        expected = network(x)
        model = libtgrad.from_neuralop(network)
        assert difference(model.predict(x), expected) < 1e-6
        assert difference(libtgrad.to_neuralop(model)(x), expected) < 1e-6


def test_a_run_goes_to_neuralop_with_its_normalizers(run):
    model = run.model()
    network = libtgrad.to_neuralop(model)
    assert isinstance(network, libtgrad.Normalized) and isinstance(network.network, FNO)
    x = torch.rand(2, 1, 16, 16)
    assert difference(network(x).detach(), model.predict(x)) < 1e-6
    network(x).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_network_for_the_program(tmp_path, config):
    network, _ = pair((8, 8), {"in_channels": 1, "out_channels": 1}, (16, 16))
    libtgrad.from_neuralop(network).save(tmp_path / "fno.safetensors")
    x = torch.rand(2, 1, 16, 16)
    numpy.save(tmp_path / "x.npy", x.numpy())
    subprocess.run([find_program(), "predict", tmp_path / "fno.safetensors", "-i", tmp_path / "x.npy", "-o",
                    tmp_path / "y.npy"], check=True, capture_output=True)
    with torch.no_grad():
        assert difference(torch.from_numpy(numpy.load(tmp_path / "y.npy")), network(x)) < 1e-6
    tuned = libtgrad.train(config, tmp_path / "tuned", init=tmp_path / "fno.safetensors", progress=False,
                           overrides={"opt.n_epochs": 1, "opt.learning_rate": 0.0})
    for name, weight in tuned.model().weights().items():
        assert numpy.array_equal(weight, network.state_dict()[name].numpy()), name


@pytest.mark.parametrize("arguments, sentence", [
    ({"non_linearity": torch.nn.functional.elu}, "non_linearity"),
    ({"norm": "batch_norm"}, "fno.norm: batch_norm"),
    ({"use_channel_mlp": False}, "GELU twice"),
    ({"complex_data": True}, "frequencies that depend on the grid"),
    ({"complex_data": True, "n_modes": (8,), "norm": "instance_norm"}, "norm: of complex data"),
    ({"resolution_scaling_factor": 2}, "resolution_scaling_factor"),
    ({"non_linearity": torch.nn.GELU("tanh")}, "non_linearity"),
    ({"max_n_modes": (8, 8)}, "max_n_modes: weights for"),
])
def test_networks_without_a_counterpart(arguments, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        libtgrad.from_neuralop(FNO(**{"n_modes": (8, 8), **SMALL, **arguments}))


def test_what_is_no_network():
    with pytest.raises(libtgrad.Error, match="a Linear is no FNO"):
        libtgrad.from_neuralop(torch.nn.Linear(1, 1))


class Doubled(FNO):
    def forward(self, x, **arguments):
        return 2 * super().forward(x, **arguments)


class Fixed(FNO):
    def __init__(self):
        super().__init__(n_modes=(8, 8), **SMALL)


def test_networks_that_were_changed():
    for network in Doubled(n_modes=(8, 8), **SMALL), Fixed():
        with pytest.raises(libtgrad.Error, match="has an __init__ or forward of its own"):
            libtgrad.from_neuralop(network)
    network = FNO(n_modes=(8, 8), **SMALL)
    network.n_modes = (4, 8)  # as when modes are added one after the other
    with pytest.raises(libtgrad.Error, match=r"weights for \(8, 8\) modes, of which \[4, 8\] are used"):
        libtgrad.from_neuralop(network)


def test_models_without_a_counterpart(tmp_path):
    network, _ = pair((8, 8), {"domain_padding": 0.25}, (16, 16))
    libtgrad.from_neuralop(network).save(tmp_path / "padded.safetensors")
    settings = libtgrad.Model.load(tmp_path / "padded.safetensors").settings
    settings["fno"]["domain_padding_mode"] = "one-sided"
    model = libtgrad.Model.load(tmp_path / "padded.safetensors", config={"fno": settings["fno"]})
    with pytest.raises(libtgrad.Error, match="domain_padding_mode"):
        libtgrad.to_neuralop(model)
