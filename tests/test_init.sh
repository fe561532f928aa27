#!/usr/bin/env bash
# tgrad init: a file in each layout trains with the settings that it writes, without a hand edit.
#
#   tests/test_init.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2")
# shellcheck source=support/checks.sh
source "$tree/tests/support/checks.sh"
fixtures=$tree/tests/fixtures

for file in layout_well.h5 layout_pdebench.h5 layout_numbered.h5 layout_pdearena.h5 layout_matlab.mat stored.npz; do
    expect 0 init "$fixtures/$file" -o config.yaml
    says out "next: tgrad train config.yaml"
    exits 0 train config.yaml --run "run_$file" --opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1 --threads 1
    ls "run_$file"/checkpoints/*.safetensors >/dev/null || complain "$file: no checkpoint"
done

expect 0 init "$fixtures/layout_well.h5" --history 2
says out "layout: well"
says out "in_channels: 6"
says out "n_modes: [4, 4]"
expect 1 init "$fixtures/layout_well.h5" --history 9
says err "need 10 frames, its trajectories have 3"
expect 1 init "$fixtures/h5py.h5"
says err "data.layout another layout than pairs"
expect 1 init missing.h5
says err "missing.h5"
expect 2 init
[ "$failures" -eq 0 ]
