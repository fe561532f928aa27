"""DTensors: sharded parameters and state, on meshes of one, two and four processes."""
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions, set_optimizer_state_dict)

import libtgrad  # noqa: E402
from shard_worker import CASES, COUNTS, Net, network, optimizer, train, weights  # noqa: E402
from torch_cases import same  # noqa: E402


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of four processes found."""
    folder = tmp_path_factory.mktemp("shards")
    worker = pathlib.Path(__file__).parent / "shard_worker.py"
    processes = [subprocess.Popen([sys.executable, worker, str(rank), folder],
                                  env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in range(4)]
    try:
        assert [process.wait(timeout=600) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


def trained(steps, **keys):
    torch.set_num_threads(1)
    net = Net()
    opt = optimizer(net, **keys)
    train(net, opt, 0, steps)
    return weights(net), opt


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(keys) for keys in CASES])
def test_any_mesh_makes_the_updates_of_one_process(ranks, number):
    expected, opt = trained(5, **CASES[number])
    for count in COUNTS:
        held = [found["steps", count, number] for found in ranks[:count]]
        assert all(same(found, expected) for found, _ in held)
        assert sum(size for _, size in held) == opt.memory()["state"]  # each state is there once


@pytest.mark.parametrize("count", COUNTS)
def test_clipped_gradients(ranks, count):
    net = Net()
    train(net, optimizer(net), 0, 5, clip=0.01)  # norms are added up in another order
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ranks[0]["clipped", count], weights(net)))


@pytest.mark.parametrize("count", COUNTS)
def test_a_module_of_the_library(ranks, count):
    torch.set_num_threads(1)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ranks[0]["network", count], network()))


@pytest.mark.parametrize("count", COUNTS)
def test_clipped_sums_of_updates_in_backward(ranks, count):
    expected, _ = trained(5, in_backward=True, max_grad_norm=0.01)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ranks[0]["clipped sums", count], expected))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("before", COUNTS)
def test_a_checkpoint_goes_on_another_mesh(ranks, before, count):
    expected, _ = trained(8)
    assert all(same(found["loaded", before, count], expected) for found in ranks[:count])
    assert all(same(found["saved", count], expected) for found in ranks[:count])


@pytest.mark.parametrize("count", COUNTS)
def test_a_whole_state_dict_goes_on(ranks, count):
    expected, _ = trained(8)
    assert all(same(found["full", count][0], expected) for found in ranks[:count])


@pytest.mark.parametrize("count", COUNTS)
def test_a_flat_state_dict_goes_on(ranks, count):
    expected, _ = trained(8)
    assert all(same(found["flat", count], expected) for found in ranks[:count])
    expected, _ = trained(8, in_backward=True)
    assert all(same(found["flat, in backward", count], expected) for found in ranks[:count])


@pytest.mark.parametrize("count", COUNTS)
def test_weights_made_after_sharding(ranks, count):
    torch.manual_seed(0)
    expected = weights(libtgrad.nn.FNO((6, 5), 1, 1, 8, n_layers=2))
    for found in ranks[:count]:
        made, said = found["late", count]
        assert same(made, expected) and "weights of torch.bfloat16, as a MixedPrecisionPolicy" in said


def test_a_whole_state_dict_goes_on_in_one_process(ranks):
    expected, _ = trained(8)
    _, state = ranks[0]["full", 4]
    net = Net()
    train(net, optimizer(net), 0, 4)
    net.zero_grad()
    opt = optimizer(net)
    set_optimizer_state_dict(net, opt, state, options=StateDictOptions(full_state_dict=True))
    train(net, opt, 4, 8)
    assert same(weights(net), expected)


@pytest.mark.parametrize("name", ["second", "hybrid"])
def test_placements_make_no_difference(ranks, name):
    assert all(same(found[name], ranks[0]["replicate"]) for found in ranks)


@pytest.mark.parametrize("key, words", [
    ("memory_budget", "set rank and sparse_ratio"),
    ("distributed", "fully_shard averages their gradients"), ("mesh", "torch.distributed.checkpoint"),
    ("whole", "full_state_dict=True saves whole tensors"), ("method", "expected 'single low_rank"), ("ranks", "the ranks have different states"),
    ("placements", "one dimension of the mesh")])
def test_every_rank_refuses(ranks, key, words):
    for found in ranks:
        assert words in found["refusals"][key]
        assert found["refusals"][key] == ranks[0]["refusals"][key]


def test_a_refused_state_changes_nothing(ranks):
    expected, _ = trained(8)
    assert all(same(found["refusals"]["after"], expected) for found in ranks)


@pytest.mark.parametrize("count", COUNTS)
def test_what_an_owner_refuses_all_ranks_refuse(ranks, count):
    for found in ranks[:count]:
        assert found["not finite", count] == 2 * ["gradient of spectral.weight: 24192 entries are NaN or Inf", True]
