#!/usr/bin/env bash
# Weights of neuraloperator: the fixtures hold its parameters and what PyTorch made of an input. Read
# by eval, predict and train --init they give the same outputs; what does not fit is listed.
#
#   tests/cli/model/test_exchange.sh build/bin/tgrad <source tree>
# shellcheck source=../../support/checks.sh
tree=$(realpath "$2")
source "$tree/tests/support/checks.sh"
fixtures=$tree/tests/fixtures

take() { # take <fixture> <tensor> <file>
    "$tgrad" convert "$fixtures/$1.safetensors" "$3" --dataset "$2" >/dev/null 2>err || complain "convert $1 $2"
}

small() { # small <number>: at most 1e-5, and a number
    awk -v value="$1" 'BEGIN { exit !(value <= 1e-5 && value >= 0) }'
}

# As PyTorch's input and output: a data set with the truth of the network itself.
take fno_2d x toy_train_16_x.npy
take fno_2d out toy_train_16_y.npy
take fno_2d x toy_test_16_x.npy
take fno_2d out toy_test_16_y.npy
take fno_2d x_eval fine_x.npy
take fno_2d out_eval fine_y.npy
cp "$fixtures/fno_2d.safetensors" weights.safetensors
cat >config.yaml <<'Y'
fno: {n_modes: [8, 8], hidden_channels: 8, n_layers: 2}
opt: {n_epochs: 1, learning_rate: 0, save_every: 1}
data: {root: ., set: toy, train_resolution: 16, test_resolutions: 16, batch_size: 2, encode_output: false}
Y

# ---- eval and predict ----

for data in toy_test_16 fine; do
    "$tgrad" eval weights.safetensors --math fp32 --config config.yaml --data ${data}_x.npy --json >out 2>err || complain "eval $data"
    small "$(jq '.results[0].l2' out)" || complain "eval $data: l2 $(jq '.results[0].l2' out)"
done
grep -q "normalized: nothing (--normalize fits" err || complain "eval says nothing of normalizers"
"$tgrad" predict weights.safetensors --math fp32 --config config.yaml -i fine_x.npy -o made.safetensors >out 2>err || complain "predict"
"$tgrad" convert made.safetensors same_y.npy >/dev/null
cp fine_x.npy same_x.npy
"$tgrad" eval weights.safetensors --math fp32 --config config.yaml --data same_x.npy --json >out 2>err
small "$(jq '.results[0].l2' out)" || complain "predict and eval differ"

# Normalizers fitted on the training data: those of the configuration.
sed 's/encode_output: false/encode_output: true/' config.yaml >encoded.yaml
"$tgrad" eval weights.safetensors --math fp32 --config encoded.yaml --normalize --data fine_x.npy --json >out 2>err || complain "--normalize"
grep -q "normalized: the output" err || complain "--normalize says which"
if small "$(jq '.results[0].l2' out)"; then complain "--normalize changed nothing"; fi

# ---- what does not fit ----

sed 's/hidden_channels: 8, n_layers: 2/hidden_channels: 8, n_layers: 1/' config.yaml >short.yaml
expect 1 eval weights.safetensors --config short.yaml --data fine_x.npy
says err "the weights do not fit the network of section fno" "fno_blocks.convs.1.bias is not in the network" "more"
sed 's/n_layers: 2/n_layers: 2, in_channels: 3, projection_channel_ratio: 4/' config.yaml >other.yaml
expect 1 eval weights.safetensors --config other.yaml --data fine_x.npy
says err "lifting.fcs.0.weight is 16x3x1, not 16x5x1" "projection.fcs.0.weight is 16x8x1, not 32x8x1"
sed 's/n_layers: 2/n_layers: 3/' config.yaml >long.yaml
expect 1 train long.yaml --run long --init weights.safetensors
says err "fno_blocks.convs.2.weight.tensor is missing"
[ ! -e long/checkpoints ] || complain "a refused --init left checkpoints"
expect 2 train config.yaml --run run --resume auto --init weights.safetensors
expect 1 eval weights.safetensors --data fine_x.npy
says err "weights alone are read by train --init, and by eval and predict with --config"
expect 1 eval weights.safetensors --data fine_x.npy --normalize
says err "--normalize is for weights with --config"
printf 'PK\003\004 a pickle in a zip' >weights.pt
expect 1 predict weights.pt --config config.yaml -i fine_x.npy -o made.npy
says err "safetensors.torch.save_file"

# ---- training from them, and what becomes of the knowledge where they came from ----

"$tgrad" train config.yaml --run run --init weights.safetensors --quiet >out 2>err || complain "train --init"
grep -q "init: weights.safetensors" run/config.yaml || complain "config.yaml does not tell of --init"
"$tgrad" eval run --math fp32 --data fine_x.npy --json >out 2>err || complain "eval of the run"
small "$(jq '.results[0].l2' out)" || complain "a learning rate of 0 changed the weights"
"$tgrad" train config.yaml --run again --init run/checkpoints/recent.safetensors --quiet >out 2>err ||
    complain "train --init with a checkpoint"
{
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 15, 15), }"
    printf '%0225d' 1
} >odd.npy
for model in run again; do
    "$tgrad" predict $model -i odd.npy -o made.npy >out 2>err || complain "an odd grid"
    grep -q "odd number of points, 15: neuraloperator 2.0 shifts" err || complain "$model: no word of odd grids"
    "$tgrad" predict $model -i fine_x.npy -o made.npy >out 2>err || complain "an even grid"
    [ ! -s err ] || complain "$model: a warning on an even grid"
done
"$tgrad" train config.yaml --run own --quiet >out 2>err
"$tgrad" predict own -i odd.npy -o made.npy >out 2>err
[ ! -s err ] || complain "a warning about weights of one's own"

echo "$failures failures"
[ "$failures" -eq 0 ]
