#!/usr/bin/env bash
# tgrad predict and eval of files in other forms than that of the training: the same numbers give the same
# prediction, and what is read is never written over. Arrays are made by numpy; skipped without it.
#
#   tests/cli/model/test_predict_files.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$tree/tests/support/checks.sh"
# shellcheck source=../../support/arrays.sh
source "$tree/tests/support/arrays.sh"
python3=$(with_numpy) || { echo "skipped: no Python with numpy" && exit 77; }

"$python3" - <<'P'
import numpy as np
r = np.random.default_rng(0)
u, v = r.standard_normal((2, 5, 4, 8, 6)).astype("f")
np.savez("uv.npz", u=u, v=v)                       # trajectories of two fields
np.save("first.npy", np.stack([u[:, 0], v[:, 0]], 1))
np.savez("w.npz", w=u[..., None])                  # one field, channels after the grid
np.save("w_first.npy", u[:, 0, ..., None])
np.savez("short.npz", u=u[:, :2])
a = r.standard_normal((7, 8, 6)).astype("f")
np.savez("pairs.npz", x=a, y=2 * a, note=np.array(["text"]), who=np.array([{}]))
np.savez("notes.npz", note=np.array(["text"]))
np.savez("turned.npz", a=a.T, u=2 * a.T, x=a.T, y=2 * a.T, q=a.T)  # as MATLAB stores them
np.savez("timed.npz", a=a.T, u=np.stack([9 * a.T, -a.T]))
np.savez("more.npz", x=a[..., None], y=np.stack([a, -a], -1))
np.save("plain.npy", a)
np.savez("grouped.npz", **{"g/x": a, "g/y": 2 * a})
y = a.copy()
y[6, 2, 2] = np.inf
np.savez("one_bad.npz", x=a, y=y)
P
matlab() { # matlab FILE OPTIONS..: of arrays of turned.npz, or of those in $from
    convert "${from:-turned.npz}" turned.h5 "${@:2}"
    { printf 'MATLAB 7.3 MAT-file, Platform: GLNXA64' && head -c 474 /dev/zero && cat turned.h5; } >"$1"
}

train() { # train RUN FILE KEYS..: a model of a file
    cat >"$1.yaml" <<Y
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {name: adam, n_epochs: 1}
data: {batch_size: 4, encode_input: true, test_resolutions: [], train_file: $2}
Y
    exits 0 train "$1.yaml" --run "$1" --threads 1 --quiet "${@:3}"
}
alike() { # alike RUN SHAPE FILE OPTIONS..: predicts the numbers of truth.npy
    expect 0 predict "$1" -i "$3" -o out.npy --threads 1 "${@:4}"
    says out "f32 $2"
    cmp -s <(tail -c +129 out.npy) <(tail -c +129 truth.npy) || complain "$last: another prediction"
}
truth() { # truth RUN FILE OPTIONS..
    expect 0 predict "$1" -i "$2" -o truth.npy --threads 1 "${@:3}"
}

# Fields in time: an array without a name is a batch of inputs, not a trajectory.
train fields uv.npz --data.fields 'u, v'
truth fields uv.npz
alike fields 5x2x8x6 first.npy
train last w.npz --data.fields w --data.order nhwc
truth last w.npz
alike last 5x8x6x1 w_first.npy
expect 1 train fields.yaml --run no --data.train_file first.npy --data.fields 'u, v' --threads 1
says err "an npy file holds one array, and data.fields names 'u' and 'v'"
train frames uv.npz --data.fields u --data.n_frames 3
truth frames uv.npz
alike frames 5x1x8x6 short.npz

# MATLAB's arrays are turned, whichever names them; others are not.
matlab all.mat && matlab only.mat --dataset q
train mat all.mat --data.x_name a --data.y_name u
truth mat all.mat
alike mat 7x8x6 all.mat --dataset q
alike mat 7x8x6 only.mat
alike mat 7x8x6 plain.npy
alike mat 7x8x6 pairs.npz --dataset x
# Of a and u with times, a model of pairs takes a, whatever its arrays were called, one of frames takes u.
from=timed.npz matlab timed.mat
alike mat 7x8x6 timed.mat
train frames_mat timed.mat
truth frames_mat timed.mat --dataset a
expect 0 predict frames_mat -i timed.mat -o first.npy --threads 1
cmp -s first.npy truth.npy && complain "$last: took a"
expect 0 init all.mat -o proposed.yaml
exits 0 train proposed.yaml --run proposed --threads 1 --quiet --opt.n_epochs 1
expect 0 eval proposed -d pairs.npz --threads 1
says out "8x6        7"
expect 0 eval proposed -d all.mat --threads 1
says out "1 test sample of all.mat; the other 6 were trained on" "8x6        1"

# A comma in a name is no end of it.
cp pairs.npz 'one, two.npz'
expect 0 init 'one, two.npz' -o comma.yaml
exits 0 train comma.yaml --run comma --threads 1 --quiet --opt.n_epochs 1

# Texts and objects beside the arrays are no reason to refuse these.
expect 0 inspect pairs.npz
says out "pairs x -> y"
expect 1 inspect notes.npz
says err "found '<U4'"

# Channels after the grid also where x has none; an array by its name in the group, or in the file.
train more more.npz --data.order nhwc
truth more more.npz
alike more 7x8x6x2 plain.npy
convert grouped.npz grouped.h5
train group grouped.h5 --data.group g
truth group grouped.h5
alike group 7x8x6 grouped.h5 --x-name x
alike group 7x8x6 grouped.h5 --x-name g/x
expect 1 predict group -i grouped.h5 -o no.npy --x-name z --threads 1
says err "'z'"

# What is read stays.
convert plain.npy kept.h5
cp kept.h5 same.h5
expect 1 init same.h5 -o same.h5
says err "same.h5: it is an input and would be overwritten"
expect 1 predict mat -i same.h5 -o ./same.h5
expect 1 predict mat/checkpoints/recent.safetensors -i same.h5 -o mat/checkpoints/recent.safetensors
expect 1 convert same.h5 same.h5 --dataset data
cmp -s same.h5 kept.h5 || complain "an input was written over"

# One sample that is not finite, which is in the last batch, is no divergence.
train bad one_bad.npz --data.shuffle false --data.encode_output false --opt.n_epochs 2 --json
says out '"skipped": 2'
says err "the loss is nan; the batch is skipped" "2 batches of this run had no finite loss and were skipped; tgrad inspect"
expect 0 train bad.yaml --run bad --data.shuffle false --data.encode_output false --opt.n_epochs 2 --json --resume auto --threads 1
says out '"skipped": 2'
[ "$failures" -eq 0 ]
