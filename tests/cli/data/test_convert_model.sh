#!/usr/bin/env bash
# Models whose spectral weights change their form. The fixtures hold factors of neuraloperator and what
# PyTorch made of an input with them: multiplied out, and decomposed again at their own ranks, they give
# the same outputs. A rank of one mode alone makes the best error there is (Eckart and Young), whichever
# the form. The model that comes out is evaluated, trained and turned back.
#
#   tests/cli/data/test_convert_model.sh build/bin/tgrad <source tree>
# shellcheck source=../../support/checks.sh
tree=$(realpath "$2")
source "$tree/tests/support/checks.sh"

take() { # take <tensor> <file>
    "$tgrad" convert weights.safetensors "$2" --dataset "$1" >/dev/null 2>err || complain "convert $1"
}

errors() { # errors: the largest relative error of `out`
    jq '[.weights[].relative_error] | max' out
}

below() { # below <what> <number> <limit>
    awk -v value="$2" -v limit="$3" 'BEGIN { exit !(value <= limit && value >= 0) }' || complain "$last: $1 is $2"
}

evaluates() { # evaluates <model ..>: as PyTorch
    exits 0 eval "$@" --data toy_test_x.npy --json
    below "the error" "$(jq '.results[0].l2' out)" 2e-5
}

# <fixture> <section fno> <ranks of its own>
for row in "tfno_tucker|n_modes: [8, 8], hidden_channels: 8, factorization: Tucker, rank: 0.3|tucker 6,6,6,4" \
    "tfno_tucker_1d|n_modes: [12], hidden_channels: 12, factorization: Tucker, rank: 0.4|tucker 0.4" \
    "tfno_tucker_3d|n_modes: [4, 6, 4], hidden_channels: 6, factorization: Tucker, rank: 0.3|tucker 0.3" \
    "tfno_cp|n_modes: [8, 8], hidden_channels: 8, factorization: CP, rank: 0.3|tt 1,8,40,5,1" \
    "tfno_tt|n_modes: [8, 8], hidden_channels: 8, factorization: TT, rank: 0.3|tt 1,7,7,6,1"; do
    IFS='|' read -r fixture section own <<<"$row"
    read -r form rank <<<"$own"
    cp "$tree/tests/fixtures/$fixture.safetensors" weights.safetensors
    echo "fno: {$section, n_layers: 2, in_channels: 1, out_channels: 1}" >config.yaml
    take x toy_test_x.npy
    take out toy_test_y.npy
    exits 0 convert weights.safetensors dense.safetensors --densify --config config.yaml --json
    jq -e '.factorization == "dense" and (.weights | length) == 2 and .parameters > .parameters_before' out >/dev/null ||
        complain "$last: $(cat out)"
    evaluates dense.safetensors
    expect 0 convert dense.safetensors again.safetensors --factorize "$form" --rank "$rank" --json
    below "the error of ranks of its own" "$(errors)" 1e-5
    evaluates again.safetensors
done

# ---- the best of one mode ----

for pair in "2,8,8,5 1,2,40,5,1" "8,8,8,3 1,8,40,3,1"; do
    read -r tucker tt <<<"$pair"
    expect 0 convert dense.safetensors a.safetensors --factorize tucker --rank "$tucker" --json
    first=$(errors)
    expect 0 convert dense.safetensors b.safetensors --factorize tt --rank "$tt" --json
    below "the difference to tucker" "$(awk -v a="$first" -v b="$(errors)" 'BEGIN { d = a - b; print d < 0 ? -d : d }')" 1e-5
    below "tucker: 0.01 to 1" "$(awk -v a="$first" 'BEGIN { print (a > 0.01 ? a : 9) }')" 1
done

# Ranks that no matrix of these sizes has: the rest is 0, and nothing is lost.
expect 0 convert dense.safetensors b.safetensors --factorize tt --rank 1,9,50,7,1 --json
below "the error of ranks beyond the sizes" "$(errors)" 1e-5
evaluates b.safetensors

# ---- a share, and what becomes of the model ----

expect 0 convert dense.safetensors small.safetensors --factorize tucker --rank 0.1
says out "fno_blocks.convs.1.weight: relative error" "wrote small.safetensors: tucker weights" "parameters of"
cp toy_test_x.npy toy_train_16_x.npy && cp toy_test_y.npy toy_train_16_y.npy
cp toy_test_x.npy toy_test_16_x.npy && cp toy_test_y.npy toy_test_16_y.npy
cat >train.yaml <<'Y'
fno: {n_modes: [8, 8], hidden_channels: 8, n_layers: 2, factorization: tucker, rank: 0.1}
opt: {n_epochs: 1, learning_rate: 1e-3}
data: {root: ., set: toy, train_resolution: 16, test_resolutions: 16, batch_size: 2}
Y
exits 0 train train.yaml --run run --init small.safetensors
expect 0 convert run whole.safetensors --densify
exits 0 eval run --data toy_test_x.npy --json
before=$(jq '.results[0].l2' out)
exits 0 eval whole.safetensors --data toy_test_x.npy --json
below "the difference of a run and its dense model" \
    "$(awk -v a="$before" -v b="$(jq '.results[0].l2' out)" 'BEGIN { d = a - b; print d < 0 ? -d : d }')" 1e-5
expect 0 predict whole.safetensors --input toy_test_x.npy --output made.npy

# Of a run whose modes grow by a look at dense weights: the model has no more to grow.
exits 0 train train.yaml --run grown --fno.factorization dense --fno.incremental_n_modes 4,4 --opt.incremental_grad true
exits 0 convert grown grown.safetensors --factorize tucker --rank 64
exits 0 eval grown.safetensors --data toy_test_x.npy --json
after=$(jq '.results[0].l2' out)
exits 0 eval grown --data toy_test_x.npy --json
below "the difference of a run and its Tucker model" \
    "$(awk -v a="$after" -v b="$(jq '.results[0].l2' out)" 'BEGIN { d = a - b; print d < 0 ? -d : d }')" 1e-5

# ---- what is refused ----

exits 2 convert dense.safetensors o.safetensors --factorize cp --rank 0.1
exits 2 convert dense.safetensors o.safetensors --factorize tucker
exits 2 convert dense.safetensors o.safetensors --densify --factorize tt --rank 2
exits 2 convert dense.safetensors o.safetensors --densify --dtype f64
expect 1 convert dense.safetensors o.h5 --densify
says err "a model file is .safetensors"
expect 1 convert dense.safetensors o.safetensors --factorize tucker --rank 9,2,2,2
says err "fno.rank: 9 for mode 0; it is from 1 to 8"
cp "$tree/tests/fixtures/tfno_separable.safetensors" weights.safetensors
echo "fno: {n_modes: [8, 8], hidden_channels: 8, n_layers: 2, in_channels: 1, out_channels: 1, separable: true}" >config.yaml
expect 1 convert weights.safetensors o.safetensors --config config.yaml --factorize tt --rank 2
says err "fno.separable: such weights have no other form"
[ ! -e o.safetensors ] || complain "a file was written"
[ $failures -eq 0 ]
