#!/usr/bin/env bash
# The examples that work with models: one is trained inside of a solver and saved; the library in C,
# in Fortran (if there is a compiler) and the program predict the same bytes with it.
#
#   tests/test_examples.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=support/checks.sh
tree=$(realpath "$2")
bin=$(realpath "$3")/bin
source "$tree/tests/support/checks.sh"

"$bin/example_insitu_train" model.safetensors >out 2>err || complain "insitu_train: $(cat out err)"
grep -q "cpu *error .*wrote model.safetensors" out || complain "insitu_train says: $(cat out)"
"$tgrad" convert "$tree/tests/fixtures/fno_2d.safetensors" x.npy --dataset x >/dev/null 2>err || complain "convert"

# ---- the program ----

"$tgrad" predict model.safetensors --input x.npy --output y.npy >out 2>err || complain "predict: $(cat err)"
[ ! -s err ] || complain "predict warns: $(cat err)"
cp x.npy same_x.npy
cp y.npy same_y.npy
"$tgrad" eval model.safetensors --data same_x.npy --json >out 2>err || complain "eval: $(cat err)"
jq -e '.results[0].l2 <= 1e-6 and .results[0].l2 >= 0' out >/dev/null || complain "eval differs: $(cat out)"

# ---- C and Fortran ----

checked=0
for program in "$bin"/example_predict "$bin"/example_predict_fortran; do
    [ -x "$program" ] || continue
    name=${program##*/} last=${program##*/} checked=$((checked + 1))
    "$program" model.safetensors x.npy made.npy >out 2>err || complain "$name: $(cat err)"
    cmp -s y.npy made.npy || complain "$name and tgrad predict differ"
    rm -f made.npy
    "$program" none.safetensors x.npy made.npy >out 2>err && complain "$name: no model, and exit code 0"
    says err "none.safetensors"
    "$program" model.safetensors model.safetensors made.npy >out 2>err && complain "$name: no array, and exit code 0"
    says err "not an npy file"
    [ ! -e made.npy ] || complain "$name: an output in spite of its failure"
done
[ "$checked" -ge 1 ] || complain "no example was there"

echo "$failures failures"
[ "$failures" -eq 0 ]
