#!/usr/bin/env bash
# Settings as a newcomer meets them: pages made from the tables agree with the documentation, and
# words of other programs are answered with the name used here.
#
#   tests/cli/test_keys.sh build/bin/tgrad <source tree>
# shellcheck source=../support/checks.sh
tree=$(realpath "$2")
source "$tree/tests/support/checks.sh"

refused() { # refused <exit code> <fixed text> <arguments of tgrad ..>
    local text=$2
    expect "$1" "${@:3}"
    says err "$text"
}

# ---- every key is on both pages, with a help line and a default ----

"$tgrad" help keys --json >keys.json
jq -r '.keys[].key' keys.json | sort >known
[ "$(wc -l <known)" -ge 90 ] || complain "$(wc -l <known) keys only"
[ -z "$(uniq -d known)" ] || complain "twice: $(uniq -d known)"
jq -e '.keys | all((.help | length > 4) and (.help | length < 80) and (.type | length > 0))' keys.json >/dev/null ||
    complain "a key without a line of help"
jq -e '[.keys[] | select(.type == "choice")] | length > 15 and all(.choices | length > 1)' keys.json >/dev/null ||
    complain "choices without words"
[ "$(jq -r '.keys[] | select(.default == null).key' keys.json)" = fno.n_modes ] || complain "defaults"

# Rows of tables in the documentation: | `key`, `key` | default | meaning |
documented() { # FILE, "section heading pattern", prefix
    awk -v want="$2" '/^#/ { on = ($0 ~ want) } on && /^\| `/' "$1" | cut -d'|' -f2 | grep -o '`[a-z_A-Z0-9]*`' |
        tr -d '`' | sed "s/^/$3./"
}
{
    documented "$tree/docs/config.md" '^## fno' fno
    documented "$tree/docs/config.md" '^## opt' opt
    documented "$tree/docs/config.md" '^## data' data
    documented "$tree/docs/optimizers.md" '^## Settings|^### Learning-rate' opt
    documented "$tree/docs/config.md" '^## distributed' distributed
    echo opt.name
} | sort -u >documented
diff known documented >differences || complain "tables and documentation differ (<: not documented)
$(cat differences)"

"$tgrad" help keys >all
"$tgrad" help keys opt >opt
for key in fno.n_modes opt.n_epochs data.batch_size distributed.seed; do
    grep -q "^  $key (" all || complain "help keys lacks $key"
done
grep -q "fno.hidden_channels (default: 64)" all || complain "a default"
grep -q "an integer from 1 to 1048576" all || complain "a range in full digits"
grep -q "one of full, half, 8bit" opt || complain "choices"
if grep -q "fno[.]" opt; then complain "help keys opt shows another section"; fi
refused 2 "did you mean opt?" help keys opts
expect 0 help opt.name
says out "  opt.name (" "one of adam, lowrank"
[ "$(grep -c '^  opt[.]' out)" -eq 1 ] || complain "help opt.name shows other settings: $(cat out)"
cp out one
expect 0 help keys opt.name
cmp -s out one || complain "$last: not the page of help opt.name"
expect 0 help keys opt.name --json
[ "$(jq -r '.keys[].key' out)" = opt.name ] || complain "$last: $(cat out)"
refused 2 "there is no setting 'opt.nam'; did you mean opt.name?" help opt.nam
refused 2 "unexpected argument" help train keys
"$tgrad" train --help >page
[ "$(grep -c '^  [a-z]*[.][a-z_]* .*\(default:\|needed\)' page)" -ge 15 ] || complain "train --help shows keys"
[ "$(awk 'length > 100' page | wc -l)" = 0 ] || complain "train --help is wider than 100 columns"

# ---- words people try ----

hint() { # WORD, EXPECTED
    refused 2 "did you mean $2?" train x.yaml "$1" 3
}
hint --epochs --opt.n_epochs
hint --n-epochs --opt.n_epochs
hint --lr --opt.learning_rate
hint --learning-rate --opt.learning_rate
hint --batch-size --data.batch_size
hint --device --backend
hint --output --run
hint --hidden-channels --fno.hidden_channels
hint --modes --fno.n_modes
hint --quite --quiet
refused 2 "did you mean --batch?" plan --batch-size 3
refused 2 "did you mean --n-train?" generate darcy --samples 3
refused 2 "unknown option '--epochs'" eval x --epochs 3
refused 2 "a setting is written --section.key VALUE" train x.yaml opt.n_epochs=3

# ---- wrong values and files ----

refused 2 "did you mean cuda?" info --backend gpu
refused 2 "needs FILE" inspect
refused 2 "needs IN OUT, got only 1" convert a
refused 2 "not both" plan x.yaml --preset ns128
refused 2 "unknown option '-x'; expected a command" -x
printf 'data: {set: x, train_resolution: 8}\n' >c.yaml
refused 1 "fno.n_modes: it must be set" plan c.yaml
printf 'fno:\n  n_modes: 8\n  # n_layers: 2\nopt:\n  # name: adam\ndata: {set: x, train_resolution: 8}\nstage2:\nwandb:\n' >c.yaml
expect 0 profile c.yaml --steps 0 # sections without a key set nothing
printf 'opt: adam\n' >c.yaml
refused 1 "c.yaml:1: opt: it is a section: expected keys below it, as in opt.KEY: VALUE, found 'adam'" plan c.yaml
printf 'fno: {n_modes: 8}\n' >c.yaml
cp "$tree/tests/fixtures/v1_f4.npy" a.npy
cp "$tree/tests/fixtures/h5py.h5" a.h5
: >empty
refused 1 "a.npy: expected settings (YAML), found arrays (npy); tgrad init writes settings" train a.npy --run r
refused 1 "a.h5: expected settings (YAML), found arrays (HDF5); tgrad init writes settings" plan a.h5
{ cat a.npy && head -c 2000000 /dev/zero; } >large.npy # larger than settings may be
refused 1 "large.npy: expected settings (YAML), found arrays (npy)" train large.npy --run r
{ printf 'a: 1 #' && head -c 2000000 /dev/zero | tr '\0' x; } >large.yaml
refused 1 "large.yaml: has 2000006 bytes, at most 1048576 are accepted" train large.yaml --run r
refused 1 "c.yaml: expected a safetensors file, found a text file" eval c.yaml --data a.h5
refused 1 "a.npy: expected a safetensors file, found an npy file" verify fno a.npy
refused 1 "a.h5: expected a safetensors file, found an HDF5 file" predict a.h5 -i a.npy -o b.npy
refused 1 "found a text file" inspect c.yaml
refused 1 "found an empty file" inspect empty
refused 1 "it is a folder, not a file" inspect .
expect 0 verify tucker "$tree/tests/fixtures/tucker_c4.safetensors"
says out "reconstruction after 1 sweep, excess over 0.356"
awk '/largest relative error/ { exit !($NF < 0.001) }' out || complain "verify tucker: $(tail -1 out)"
"$tgrad" --help | awk '/^Commands/ { on = 1; next } on && /^  / && $2 !~ /^[A-Z]/ { print; bad = 1 } END { exit bad }' ||
    complain "a summary without a capital letter"

refused 1 "did you mean low_rank?" plan --preset ns128 --opt.proj_type low_rnk
refused 1 "fno.hidden_channels: expected an integer from 1 to 1048576, found '0'" plan --preset ns128 --fno.hidden_channels 0

echo "$failures failures"
[ "$failures" -eq 0 ]
