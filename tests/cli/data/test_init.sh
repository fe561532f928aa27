#!/usr/bin/env bash
# tgrad init: a file in each layout trains with the settings that it writes, without a hand edit.
#
#   tests/cli/data/test_init.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$tree/tests/support/checks.sh"
fixtures=$tree/tests/fixtures

for file in layout_well.h5 layout_pdebench.h5 layout_numbered.h5 layout_pdearena.h5 layout_matlab.mat layout_matlab_complex.mat stored.npz; do
    expect 0 init "$fixtures/$file" -o config.yaml
    says out "next: tgrad train config.yaml --run DIR"
    exits 0 train config.yaml --run "run_$file" --opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1 --threads 1
    ls "run_$file"/checkpoints/*.safetensors >/dev/null || complain "$file: no checkpoint"
done

expect 0 inspect "$fixtures/layout_matlab_complex.mat" # parts called real and imag
says out "8x6    0.246763  2.59281  1.22943" "1 -> 1 channels, complex"

# the loss sees means, too, and says why
expect 0 init "$fixtures/layout_well.h5" -o noted.yaml
grep -q '^  training_loss: "l2 + h1"  # h1 for fine structure, l2 for means and large scales$' noted.yaml ||
    complain "no loss: $(cat noted.yaml)"
expect 0 train noted.yaml --run noted --opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1 --threads 1
says out "train: (l2 + h1) "
grep -qx '  training_loss: "l2 + h1"' noted/config.yaml || complain "another loss: $(cat noted/config.yaml)"
expect 0 init "$fixtures/layout_well.h5" --history 2
says out "in_channels: 6"
says out "n_modes: [4, 4]"
expect 0 init "$fixtures/layout_pdearena.h5" --group train --fields vx -o -
says out "group: train" "fields: vx" "in_channels: 1"
[ ! -e - ] || complain "$last: a file called -"
expect 0 init "$fixtures/layout_pdearena.h5" --group train --x-name u --y-name vx
says out "group: train" "x_name: u" "in_channels: 3"
expect 1 init "$fixtures/layout_well.h5" --history 9
says err "need 10 frames, its trajectories have 3"
expect 1 init "$fixtures/h5py.h5"
says err "data.x_name says which one is x" "data.layout that it is one of trajectory, well, pdebench"
says err "here the keys of section data are the options --x-name, --y-name, --fields"
printf 'MATLAB 5.0 MAT-file, Platform: GLNXA64' >old.mat
expect 1 init old.mat
says err "found a MATLAB file of version 5 (save it again with '-v7.3')"
printf 'CDF\001 of some climate model' >old.nc
expect 1 inspect old.nc
says err "found a netCDF file of version 3"
expect 1 init missing.h5
says err "missing.h5"
grep -q "the options" err && complain "$last: options that do not help"
expect 2 init
expect 2 init "$fixtures/h5py.h5" --data.x_name start
says err "did you mean --x-name?"
expect 2 train config.yaml --run x --data.x-name start
says err "did you mean --data.x_name?"

expect 1 train run_stored.npz --run x
says err "run_stored.npz: it is a folder; the settings of a run are its config.yaml"

# ---- the optimizer by the memory that its state would take ----

fake=$(realpath "$3")/bin/tgrad_fake
exits 0 generate darcy --n-train 4 --n-test 4 --resolution 16 -o .
# expect_form BYTES_LEFT NAME PRECISION COMMENT
expect_form() {
    FAKE_DEVICE_LEFT=$1 "$fake" init darcy_train_16.h5 >by_memory.yaml 2>err || complain "init with $1 bytes left"
    grep -q "^  name: $2  # $4\$" by_memory.yaml || complain "$1 bytes left, another method: $(cat by_memory.yaml)"
    [ "$(sed -n 's/^  state_precision: //p' by_memory.yaml)" = "$3" ] ||
        complain "$1 bytes left, another precision: $(cat by_memory.yaml)"
}
exits 0 init "$fixtures/stored.npz" # too few weights to compress: no other method is smaller
grep -q "^  name: adam  # state [0-9.]* KiB, under 5 % of the memory left$" out || complain "$last: $(cat out)"
adam='state [0-9.]* MiB, under 5 % of the memory left; tensorgrad with 8-bit moments: [0-9.]* KiB'
less="state [0-9.]* [KM]iB; Adam's, [0-9.]* MiB, is over 5 % of the memory left"
if [ -x "$fake" ]; then
    expect_form 1000000000 adam "" "$adam"
    expect_form 20000000 adam 8bit "$less"
    expect_form 4000000 tensorgrad 8bit "$less"
    exits 0 train by_memory.yaml --run by_memory --opt.n_epochs 1 --threads 1 # the comment is one
    for line in "match_rms: true" "sparse_ratio: 0.20" "second_rank: 0.05" "update_proj_gap: 100" \
        "moments_on_refresh: reset" "eps: 1.0e-8"; do # docs/choosing.md, as in the torch class
        grep -qx "  $line" by_memory.yaml || complain "tensorgrad without $line: $(cat by_memory.yaml)"
    done
fi

# ---- one file for training and tests ----

expect 0 init "$fixtures/stored.npz" -o split.yaml
quick=(--opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1 --threads 1)
expect 0 train split.yaml --run run_split "${quick[@]}"
grep -q "is the training file, too" err && complain "$last: tests that are set apart are warned of"
exits 0 train split.yaml --run run_overlap "${quick[@]}" --data.test_skip 0
says err "stored.npz is the training file, too" "data.n_train and data.test_skip of the same number"

# ---- inspect: the same settings, and what they are made of ----

"$tgrad" init "$fixtures/layout_well.h5" >settings
expect 0 inspect "$fixtures/layout_well.h5"
says out "data layout: well, fields in time t0_fields/pressure, t1_fields/velocity" \
    "4 trajectories of 3 times" "8 samples on a grid of 8, 3 -> 3 channels" "left out: dimensions/time"
tail -n "$(wc -l <settings)" out | cmp - settings || complain "inspect: other settings than init: $(cat out)"
expect 0 inspect "$fixtures/layout_numbered.h5" --json
says out '"name": "numbered"' '"left_out": []'
# fields in time of a file without groups: x (2, 3, 8), y (2, 3, 8) and a mask (8)
header='{"x":{"dtype":"F32","shape":[2,3,8],"data_offsets":[0,192]},'
header+='"y":{"dtype":"F32","shape":[2,3,8],"data_offsets":[192,384]},'
header+='"wall_mask":{"dtype":"F32","shape":[8],"data_offsets":[384,416]}}'
{ printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0$header" && head -c 416 /dev/zero; } >masked.safetensors
expect 0 inspect masked.safetensors
says out "pairs x -> y" "2 samples on a grid of 8, 3 -> 3 channels" "masks are not used: wall_mask"
expect 0 inspect masked.safetensors --json
says out '"masks": [' '"in_channels": 3' '"config": "data:'
expect 0 init masked.safetensors --fields x
says out "fields: x" "n_modes: [4]" "n_train: 1"
exits 1 inspect "$fixtures/h5py.h5"
says out "data layout: not recognized" "data.x_name says which one is x"
exits 1 inspect "$fixtures/h5py.h5" --json
says out '"name": null' '"reason": "'
[ "$failures" -eq 0 ]
