#!/usr/bin/env bash
# The run folder from the outside: a refused run changes nothing, one process trains in it at a time,
# --force, --resume without a config, finished runs, and what killed or failing processes leave.
# shellcheck source=../support/checks.sh
. "$(dirname "$0")/../support/checks.sh"

"$tgrad" generate darcy --n-train 16 --n-test 4 --resolution 8 --test-resolution 8,16 --grid 16 \
    --seed 3 -o data >log 2>&1 || {
    cat log
    exit 1
}
cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {name: adam, n_epochs: 4, learning_rate: 0.005}
data: {root: data, set: darcy, train_resolution: 8, test_resolutions: [8], batch_size: 8}
distributed: {seed: 5}
Y
train() { # train <exit code> <arguments ..>: one thread, so that every run has the same bits
    local code=$1
    shift
    expect "$code" train --threads 1 "$@"
}
# Names, sizes, times and contents of everything in a folder, the folder itself included.
picture() {
    find "$1" -printf '%p %y %s %T@ %l\n' | sort
    find "$1" -type f -exec md5sum {} + | sort
}
unchanged() { # unchanged <exit code> <folder> <arguments of train ..>
    local code=$1 folder=$2
    shift 2
    picture "$folder" >before
    train "$code" --run "$folder" "$@"
    picture "$folder" >after
    cmp -s before after || complain "$last: the folder changed: $(diff before after | head -5)"
}
final=checkpoints/step-0000000008.safetensors

train 0 config.yaml --run whole
# modes, width, layers, epochs, rate, folder, set, two grids, batch and seed
says out "settings: whole/config.yaml, 11 differ from the defaults"
[ "$(wc -l <out)" -lt 15 ] || complain "a short run prints $(wc -l <out) lines"
train 0 config.yaml --run talking --opt.n_epochs 1 --fno.n_layers 4 --verbose
says out "settings: talking/config.yaml, 10 differ from the defaults" "  n_layers: 4"
while read -r line; do # every one of the file
    grep -qF -- "$line" out || complain "--verbose leaves out '$line'"
done <talking/config.yaml

# ---- a refused run changes nothing, and makes no folder ----
unchanged 1 whole config.yaml --opt.n_epochs 9
says err "whole: it already holds a run" "--force"
unchanged 1 whole config.yaml --resume auto --fno.hidden_channels 8
unchanged 1 whole config.yaml --resume auto --distributed.seed 6
unchanged 1 whole config.yaml --resume nowhere.safetensors
unchanged 1 whole config.yaml --force --data.root elsewhere
unchanged 2 whole config.yaml --force --resume auto
rm whole/.lock # the same for a folder of a run that never was locked
unchanged 1 whole config.yaml
unchanged 1 whole config.yaml --resume auto --fno.hidden_channels 8
for arguments in "--opt.learning_rat 1" "--data.root elsewhere" "--resume nowhere.safetensors"; do
    # shellcheck disable=SC2086 # words
    train 1 config.yaml --run fresh/folder $arguments
    [ ! -e fresh ] || complain "$last: made a folder"
done
touch file
train 1 config.yaml --run file
train 1 config.yaml --run file/inside
[ ! -s file ] || complain "a file in the place of the folder was written to"
train 0 config.yaml --run saved --opt.n_epochs 2
unchanged 1 whole config.yaml --resume saved/checkpoints/recent.safetensors
says err "whole: it holds a run, and saved/checkpoints/recent.safetensors is no checkpoint of it"
train 0 config.yaml --run silent --opt.n_epochs 1 --quiet
[ ! -s out ] || complain "--quiet printed $(head -1 out)"
train 0 --run silent --resume auto --quiet
[ ! -s out ] || complain "--quiet printed $(head -1 out)"
rm saved/checkpoints/step-* saved/checkpoints/recent*
unchanged 1 saved config.yaml # a best checkpoint alone is a run, too

# ---- nothing to do, and more epochs ----
unchanged 0 whole config.yaml --resume auto
says out "nothing to do: whole is finished (4 epochs, 8 steps)" "opt.n_epochs"
unchanged 0 whole --resume auto --opt.n_epochs 3
train 0 config.yaml --run stuck --opt.n_epochs 20 --opt.learning_rate 0 --opt.early_stopping 2
unchanged 0 stuck --resume auto --opt.n_epochs 40
says out "nothing to do: opt.early_stopping ended stuck after 3 of 40 epochs"
unchanged 0 whole --resume auto --json
says out '"finished": true' '"epoch": 4' '"step": 8' '"train_loss": null' "$final"
train 0 config.yaml --run parts --opt.n_epochs 2
train 0 --run parts --resume auto --opt.n_epochs 4
says out "resumed after step 4, in epoch 3 of 4, from parts/checkpoints/step-0000000004.safetensors" \
    "finished: 4 epochs, 8 steps"
cmp -s whole/$final parts/$final || complain "a run that was extended has other weights"
# interrupted after its last epoch, resumed with fewer
cp -r parts fewer
rm fewer/samples.safetensors
train 0 --run fewer --resume auto --opt.n_epochs 3
says out "resumed after step 8; all 3 epochs are done, from fewer/checkpoints/step-0000000008.safetensors" \
    "finished: 4 epochs, 8 steps"
! grep -q -e "peak memory" -e "in epoch" out || complain "a run without an epoch reports memory or an epoch"

train 0 config.yaml --run frugal --opt.n_epochs 2
unchanged 1 frugal --resume auto --opt.n_epochs 4 --opt.state_precision half --opt.beta1 0.8
says err "made with other settings: opt.state_precision (full there, half here)"
train 0 --run frugal --resume auto --opt.n_epochs 4 --fno.activation_checkpoint block # on a smaller machine
jq -se '(.[3].train.loss - .[7].train.loss | fabs) < 1e-6' whole/metrics.jsonl frugal/metrics.jsonl >/dev/null ||
    complain "checkpointing from the middle on: another loss"
train 0 --run frugal --resume auto --opt.n_epochs 5 --fno.micro_batch 2 --fno.saved_precision 8bit
grep -q "n_epochs: 4" parts/config.yaml || complain "config.yaml does not tell the new settings"
rm parts/samples.safetensors # killed before they were written
train 0 --run parts --resume auto
cmp -s whole/samples.safetensors parts/samples.safetensors || complain "the end was not made up for"
cp -r parts ending # killed when the last checkpoint was there and `recent` did not lead to it yet
cp ending/checkpoints/step-0000000006.safetensors ending/checkpoints/step-0000000004.safetensors
ln -sf step-0000000006.safetensors ending/checkpoints/recent.safetensors
rm ending/samples.safetensors
train 0 --run ending --resume auto
cp -r parts ended # and when the best one was all there was
rm ended/samples.safetensors ended/checkpoints/step-* ended/checkpoints/recent.safetensors
train 0 --run ended --resume auto
for run in ending ended; do
    cmp -s whole/$final $run/checkpoints/recent.safetensors || complain "$run: recent is not the last checkpoint"
done
[ "$(find ending/checkpoints -name 'step-*' | wc -l)" -eq 2 ] || complain "old checkpoints stay"
cp -r parts longer
train 0 --run longer --resume auto --opt.n_epochs 5
cp parts/samples.safetensors longer/ # of an earlier end
train 0 --run longer --resume auto
says out "finished: 5 epochs"
cmp -s parts/samples.safetensors longer/samples.safetensors && complain "samples of another step were kept"
train 0 config.yaml --run saved --resume auto
says out "resumed"
cmp -s whole/$final saved/$final || complain "a run that has its best checkpoint alone continues from there"

# ---- settings of the run ----
train 2 --run whole
says err "CONFIG.yaml is needed, or --resume auto"
train 1 --run none --resume auto
says err "none: there is no run to resume"
[ ! -e none ] || complain "$last: made a folder"
train 0 config.yaml --run late --opt.n_epochs 1 --stage2.opt.n_epochs 1 --stage2.data.batch_size 4
cp late/config.yaml first.yaml
train 0 --run late --resume auto --stage2.opt.n_epochs 2 # resumed in its second stage
diff <(sed 's/n_epochs: .*//' first.yaml) <(sed 's/n_epochs: .*//' late/config.yaml) >log ||
    complain "config.yaml mixes the stages: $(cat log)"

# ---- --force ----
cp -r whole forced
echo mine >forced/notes.txt
echo mine >forced/checkpoints/notes.txt
train 0 config.yaml --run forced --force --opt.n_epochs 1 --opt.save_every 9
[ "$(wc -l <forced/metrics.jsonl)" -eq 1 ] || complain "--force kept old metrics"
[ "$(wc -l <forced/metrics.csv)" -eq 2 ] || complain "--force kept the old table"
[ "$(find forced/events -type f | wc -l)" -eq 1 ] || complain "--force kept old events"
[ "$(find forced/checkpoints -name 'step-*' -printf %f)" = step-0000000002.safetensors ] ||
    complain "--force kept old checkpoints: $(ls forced/checkpoints)"
grep -q "n_epochs: 1" forced/config.yaml || complain "--force kept the old settings"
cat forced/notes.txt forced/checkpoints/notes.txt >log || complain "--force removed files that are no run's"
train 0 config.yaml --run forced/new --force
cmp -s whole/$final forced/new/$final || complain "--force in a new folder trains as usual"

# ---- one process at a time ----
"$tgrad" train config.yaml --run busy --threads 1 --opt.n_epochs 1000000 >log 2>&1 &
pid=$!
waits_for $pid test -e busy/checkpoints/recent.safetensors
stops $pid
for arguments in "" "--resume auto" --force; do
    # shellcheck disable=SC2086 # words
    unchanged 1 busy config.yaml $arguments
    says err "busy: process $pid on $(uname -n) is training in this folder"
done
kill -KILL $pid
wait $pid 2>/dev/null
before=$(wc -l <busy/metrics.jsonl)
train 0 --run busy --resume auto --opt.n_epochs $((before + 2)) # the lock died with its process
says out "resumed"
[ "$(wc -l <busy/metrics.jsonl)" -eq $((before + 2)) ] || complain "metrics of two processes are mixed"

# ---- what a killed process leaves ----
cp -r parts left
true & # a number that no process has any more
gone=$!
wait $gone
for file in left left/checkpoints; do
    touch $file/.tgrad-$gone-0.tmp $file/.tgrad-$$-0.tmp $file/.tgrad-notes.tmp
done
train 0 --run left --resume auto --opt.n_epochs 5
for file in left left/checkpoints; do
    [ ! -e $file/.tgrad-$gone-0.tmp ] || complain "a temporary file of a killed process stays in $file"
    [ -e $file/.tgrad-$$-0.tmp ] || complain "a temporary file of a living process was removed"
    [ -e $file/.tgrad-notes.tmp ] || complain "a file that is none of ours was removed"
done

# ---- what is printed where there is no terminal: plain lines of at most 100 columns ----
train 0 config.yaml --run lines --data.test_resolutions 8,16,8
[ "$(grep -c '^epoch' out)" -eq 4 ] || complain "a line per epoch is printed"
[ "$(grep -c '^      | .*ms/step' out)" -eq 4 ] || complain "an epoch with many errors has two lines"
grep -q $'\r' out && complain "a file got a line that is redrawn"
awk '/^epoch|^      \|/ && length > 100 { exit 1 }' out || complain "an epoch has more than 100 columns"
for error in "| 8: l2 " "| 16: l2 " "| 8_2: l2 "; do
    [ "$(grep -cF "$error" out)" -eq 4 ] || complain "no '$error' in the lines of the epochs"
done

# ---- a limit on the size of files: a sentence, and not the end by a signal ----
(
    ulimit -f 4
    train 1 config.yaml --run limited -q
    says err "limited/checkpoints/" "cannot write: File too large"
    exit $failures
)
failures=$?

[ $failures -eq 0 ] && echo "run folder: all checks passed"
exit $((failures > 0))
