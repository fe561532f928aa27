#!/usr/bin/env bash
# Training on data at points: a set of bodies is made, planned to the byte, trained, resumed to the
# same bits, evaluated at other points, predicted and pictured; what does not fit is named.
#
#   tests/cli/data/test_points.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2") fake=$(realpath "$3")/bin/tgrad_fake
# shellcheck source=../../support/checks.sh
source "$tree/tests/support/checks.sh"
# shellcheck source=../../support/arrays.sh
source "$tree/tests/support/arrays.sh"

exits 0 generate potential --n-train 6 --n-test 2 -r 60 --test-resolution 60,24 --order 3 -o data
cat >points.yaml <<'Y'
model: gino
fno:
  n_modes: [4, 4, 4]
  hidden_channels: 6
  n_layers: 2
  in_channels: 3
  in_gno_radius: 0.3
  out_gno_radius: 0.3
  in_gno_pos_embed_type: nerf
  out_gno_pos_embed_type: nerf
  gno_embed_channels: 2
  in_gno_channel_mlp_hidden_layers: [8]
  out_gno_channel_mlp_hidden_layers: [8]
opt:
  name: tensorgrad
  n_epochs: 4
  training_loss: l2
  learning_rate: 1.0e-2
  min_entries: 100
  update_proj_gap: 5
data:
  root: data
  set: potential
  train_resolution: 60
  test_resolutions: [60, 24]
  latent_grid: 6
  batch_size: 1
distributed: {seed: 3}
Y

exits 0 train points.yaml --run whole --quiet --threads 2
says whole/metrics.jsonl '"test":{"60":{"l2":' '"24":{"l2":' '"h1":null'
[ "$(wc -l <whole/metrics.jsonl)" -eq 4 ] || complain "$last: not four epochs"
first=$(sed -n 's/.*"train":{"loss":\([0-9.e-]*\).*/\1/p' whole/metrics.jsonl | head -1)
final=$(sed -n 's/.*"train":{"loss":\([0-9.e-]*\).*/\1/p' whole/metrics.jsonl | tail -1)
awk "BEGIN { exit !($final < 0.8 * $first) }" || complain "the loss went from $first to $final"

# The channels at a point are its coordinates, said or not.
grep -v in_channels points.yaml >unsaid.yaml
exits 0 train unsaid.yaml --run unsaid --quiet --threads 2
cmp -s whole/config.yaml unsaid/config.yaml || complain "$last: other settings"

# The config that is shipped, made small.
exits 0 train "$tree/configs/potential.yaml" --run shipped --quiet --threads 2 --data.root data --opt.n_epochs 1 \
    --data.train_resolution 60 --data.test_resolutions 24 --data.latent_grid 6 --fno.n_modes '[4, 4, 4]'
says shipped/metrics.jsonl '"24":{"l2":'

# Settings from the file: radii that hold about 20 neighbours, and a grid that fits them.
expect 0 inspect data/potential_train_60.h5
says out "pairs points -> values" "6 samples at 60 points, 3 -> 1 channels" "latent_grid: 8"
"$tgrad" init data/potential_train_60.h5 >settings
tail -n "$(wc -l <settings)" out | cmp - settings || complain "inspect: other settings than init: $(cat out)"
expect 0 init data/potential_train_60.h5 -o init.yaml
says out "6 samples at 60 points, 3 -> 1 channels" "next: tgrad train init.yaml"
says init.yaml "architecture: gino" "n_modes: [4, 4, 4]" "n_train: 5" "batch_size: 1" "training_loss: l2"
radius=$(sed -n 's/ *in_gno_radius: //p' init.yaml)
awk "BEGIN { exit !($radius > 0.15 && $radius < 0.4) }" || complain "$last: a radius of $radius"
exits 0 train init.yaml --run init --quiet --threads 2 --opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1

# Stopped after two epochs and resumed: the same bits.
exits 0 train points.yaml --run half --quiet --threads 2 --opt.n_epochs 2
exits 0 train points.yaml --run half --quiet --threads 2 --resume auto
newest=$(find whole/checkpoints -name '[0-9s]*.safetensors' -printf '%f\n' | sort | tail -1)
cmp -s "whole/checkpoints/$newest" "half/checkpoints/$newest" || complain "resumed: $newest is another one"

# The ledger is as planned.
expect 0 plan points.yaml --json
parameters=$(sed -n 's/^ *"parameters": \([0-9]*\).*/\1/p' out | head -1)
expect 0 plan points.yaml
says out "at resolution 60" "evaluation at 24"
expect 0 profile points.yaml --steps 2 --json --threads 2
says out '"as_planned": true' "\"parameters\": $parameters"

# Other points of the same bodies, also every other one of a file.
expect 0 eval whole --data data/potential_test_24.h5 --json
says out '"resolution": 24' '"samples": 2' '"h1": null'
expect 0 eval whole --data data/potential_test_60.h5 --resolution 60,20
says out "  -  "
expect 0 predict whole --input data/potential_test_24.h5 --output pred.h5
says out "2 samples, f32 2x1x24"
expect 0 inspect pred.h5
says out "values  f32    2x1x24"
# Queries that are the points give the same bits; others, one list for all samples, are as many.
expect 0 predict whole --input data/potential_test_24.h5 --output plain.npy
expect 0 predict whole --input data/potential_test_24.h5 --queries data/potential_test_24.h5 --output same.npy
cmp -s plain.npy same.npy || complain "$last: not what is predicted at the points"
expect 0 predict whole --input data/potential_test_24.h5 --queries data/potential_test_60.h5 --output other.h5
says out "2 samples, f32 2x1x60"
expect 1 predict whole --input data/potential_train_60.h5 --queries data/potential_test_60.h5 --output none.h5
says err "expected queries (6 samples, queries, 3) or (queries, 3), found 2x60x3"
expect 0 report whole -o report.html
says report.html "Resolution 60" "Prediction of whole"
grep -q 'H<sup>1</sup>\.\|test.60.h1' report.html && complain "$last: tells H1 errors"
[ "$(grep -o 'src="data:image/png' report.html | wc -l)" -ge 8 ] || complain "$last: too few pictures"

# ---- what does not fit ----

exits 1 train points.yaml --run none --data.batch_size 2
says err "data.batch_size" "share their points" "expected 1"
expect 1 train points.yaml --run none --opt.training_loss h1
says err "opt.training_loss: h1 takes differences on a grid"
expect 1 train points.yaml --run none --opt.input_noise 0.01
says err "opt.input_noise: points are taken as they are"
expect 1 train points.yaml --run none --data.encode_input true
says err "data.encode_input: points are taken as they are"
expect 1 train points.yaml --run none --fno.in_gno_radius 0
says err "fno.in_gno_radius: nothing is within 0"
expect 1 train points.yaml --run none --fno.latent_feature_channels 1
says err "fno.latent_feature_channels: runs read points and values alone"
expect 1 train points.yaml --run none --data.layout well
says err "data.layout: points and their values are pairs"
expect 1 train points.yaml --run none --data.latent_grid 6x6
says err "data.latent_grid: a grid of 2 dimensions, but fno.n_modes has 3"
expect 1 train points.yaml --run none --data.train_resolution 60x60
says err "data.train_resolution"
expect 1 train points.yaml --run none --data.train_resolution 50
says err "potential_train_50"
expect 1 predict whole --input plain.npy --output none.h5
says err "expected real (samples, points, 3 coordinates), found f32 2x1x24"
if python3=$(with_numpy); then
    "$python3" -c 'import numpy; numpy.save("outside.npy", numpy.full((5, 3), 1.5, "f"))'
    expect 1 predict whole --input outside.npy --output none.h5
    says err "outside.npy: " "sample 0, point 0: coordinate 0 is 1.5; expected all points in the unit box"
    expect 1 predict whole --input data/potential_test_24.h5 --queries outside.npy --output none.h5
    says err "outside.npy: " "sample 0, point 0: coordinate 0 is 1.5; expected all points in the unit box"
    # The points of one sample, and one list of queries for all: those of the file give the same bits.
    expect 0 convert data/potential_test_24.h5 all.npy --dataset points
    "$python3" -c 'import numpy; p = numpy.load("all.npy"); numpy.save("one.npy", p[1]); numpy.save("twice.npy", p[[1, 1]])'
    expect 0 predict whole --input one.npy --output one_y.npy
    says out "1 sample, f32 24"
    cmp -s <(tail -c 96 plain.npy) <(tail -c 96 one_y.npy) || complain "$last: one sample alone differs"
    expect 0 predict whole --input data/potential_test_24.h5 --queries one.npy --output listed.npy
    expect 0 predict whole --input data/potential_test_24.h5 --queries twice.npy --output each.npy
    cmp -s listed.npy each.npy || complain "$last: one list of queries differs from one for each sample"
    "$python3" - <<'P'
import numpy as np
p = np.random.default_rng(0).random((4, 900, 2), "f")
np.savez("plane.npz", at=p, u=np.stack([p[..., 0], p[..., 1]], 1))
np.savez("large.npz", points=2 * p, values=p[..., 0])
np.savez("wide.npz", points=np.zeros((4, 9, 5), "f"), values=np.zeros((4, 9), "f"))
P
    expect 0 init plane.npz --points --x-name at --y-name u -o plane.yaml
    says out "4 samples at 900 points, 2 -> 2 channels"
    says plane.yaml "x_name: at" "n_modes: [8, 8]" "fno_in_channels: 2" "latent_grid: 16" "out_gno_radius: 0.12"
    exits 0 train plane.yaml --run plane --quiet --threads 2 --opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1
    expect 1 init plane.npz --points
    says err "there is no tensor 'points'; there are at, u; data.x_name says which one is x"
    expect 1 init large.npz
    says err "points: sample 0, point " "expected all points in the unit box"
    expect 1 init wide.npz --points
    says err "expected real (samples, points, 3 coordinates), found f32 4x9x5"
fi
expect 1 predict whole --input pred.h5 --output none.h5
says err "values: expected real (samples, points, 3 coordinates), found f32 2x1x24"
expect 1 predict whole --input data/potential_test_24.h5 --output none.h5 --steps 2
says err "--steps: the model makes values of points"
expect 1 export whole --c -o exported
says err "points (fno.architecture: gino)"

# A device trains to the same bits, as planned, and predicts the same.
if [ -x "$fake" ]; then
    "$fake" train points.yaml --run device --quiet --threads 2 --opt.n_epochs 2 >out 2>err || complain "on a device: $(cat err)"
    "$fake" train points.yaml --run device --quiet --threads 2 --resume auto >out 2>err || complain "resumed on a device: $(cat err)"
    cmp -s "whole/checkpoints/$newest" "device/checkpoints/$newest" || complain "on a device: $newest is another one"
    "$fake" profile points.yaml --steps 2 --json --threads 2 >out 2>err
    says out '"as_planned": true'
    "$fake" predict whole --input data/potential_test_24.h5 --queries data/potential_test_24.h5 --output device.npy >out 2>err
    cmp -s plain.npy device.npy || complain "a device predicts other values: $(cat err)"
fi

# Queries without neighbours are no error, but are warned of.
exits 0 train points.yaml --run apart --threads 2 --opt.n_epochs 1 --fno.out_gno_radius 0.05
says err "fno.out_gno_radius: 0.05 is less than half the diagonal"

[ $failures -eq 0 ] && echo "a network on points trains, resumes and is reported as it should be"
exit $((failures > 0))
