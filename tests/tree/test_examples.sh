#!/usr/bin/env bash
# The examples that work with models: one is trained inside of a solver and saved; the program and
# the library predict the same bytes with it.
#
#   tests/tree/test_examples.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../support/checks.sh
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

# ---- the library ----

last=example_predict
"$bin/example_predict" model.safetensors x.npy made.npy >out 2>err || complain "example_predict: $(cat err)"
cmp -s y.npy made.npy || complain "example_predict and tgrad predict differ"
rm -f made.npy
"$bin/example_predict" none.safetensors x.npy made.npy >out 2>err && complain "no model, and exit code 0"
says err "none.safetensors"
"$bin/example_predict" model.safetensors model.safetensors made.npy >out 2>err && complain "no array, and exit code 0"
says err "not an npy file"
[ ! -e made.npy ] || complain "an output in spite of a failure"

echo "$failures failures"
[ "$failures" -eq 0 ]
