#!/usr/bin/env bash
# tgrad sweep: the list of runs, all mistakes reported before the first run, resume to the bit, a run
# that fails beside others that do not, signals, parts of a job array.
support=$(realpath "$(dirname "$0")")/../../support
# shellcheck source=../../support/checks.sh
. "$support/checks.sh"
# shellcheck source=../../support/json.sh
. "$support/json.sh"

cat >base.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 8, n_layers: 1}
opt: {n_epochs: 2, learning_rate: 0.005, min_entries: 100}
data: {set: darcy, train_resolution: 8, test_resolutions: [8], batch_size: 8}
Y
cat >small.yaml <<'Y'
title: Two methods
base: base.yaml
generate: {equation: darcy, n_train: 16, n_test: 4, resolution: 8, grid: 31}
variants:
  Adam: {opt.name: adam, published: 0.7}
  TensorGRaD 5 + 20 %: {opt.name: tensorgrad}
axes: {opt.weight_decay: 0}
seeds: [0, 1]
baseline: Adam
scales:
  smoke: {seeds: 0, axes.opt.weight_decay: null, settings.data.n_train: 8}
  grid: {axes.opt.weight_decay: [0, 1e-4]}
  listed: {seeds: 0, axes.opt.weight_decay: null, list.opt.learning_rate: [1e-3, 2e-3], list.opt.eps: [1e-6, 1e-7]}
Y

# ---- mistakes: all of them, and nothing is made ----
cat >bad.yaml <<'Y'
base: base.yaml
titel: wrong
settings: {data.root: nowhere}
axes: {opt.rnak: [0.1, 0.2], opt.weight_decay: []}
variants:
  a b: {fno.hiden_channels: 4}
  a-b: {opt.name: adamm}
baseline: none
seeds: [0, x]
Y
expect 1 sweep bad.yaml --out bad --dry-run
says err "mistakes, nothing was run" "titel" "did you mean title" "axes.opt.weight_decay is empty" \
    "no variant or run called 'none'"
cat >worse.yaml <<'Y'
base: base.yaml
variants: [Adam, Lion]
axes:
list: {opt.learning_rate: [1e-3, 2e-3, 3e-3], opt.eps: [1e-6]}
metric: l2
scales: {smoke: {seed: 0}}
Y
expect 1 sweep worse.yaml --out bad --dry-run
says err "variants needs a map" "list.opt.eps has 1 values, list.opt.learning_rate 3" "metric: 'l2' is not GRID.l2" \
    "'seed' is not a key of a sweep; did you mean seeds"
grep -q axes err && complain "$last: an empty section is a mistake"
# Seeds and rates have keys of their own, which count for all runs.
cat >ignored.yaml <<'Y'
base: base.yaml
settings: {distributed.seed: 5}
variants: {a: {distributed.seed: 3}, b: {opt.learning_rate: 1e-3}}
axes: {opt.learning_rate: [1e-3, 1e-2]}
lr: {values: [1e-4, 1e-1], n_validation: 2}
Y
expect 1 sweep ignored.yaml --out bad --dry-run --distributed.seed 7
[ "$(grep -c 'distributed.seed: a sweep takes its seeds from seeds:' err)" -eq 3 ] || complain "$last: seeds"
[ "$(grep -c 'opt.learning_rate: lr.values are tried instead' err)" -eq 2 ] || complain "$last: rates"
sed -i 's/, opt.weight_decay: \[\]//' bad.yaml
expect 1 sweep bad.yaml --out bad
says err "opt.rnak" "opt.rank" "fno.hiden_channels" "fno.hidden_channels" "adamm" \
    "two runs would be called a-b_rnak=0.1_s0" "'x' is not an integer of 0 or more"
[ ! -e bad ] || complain "a refused sweep made its folder"
# Rows that differ only in what nothing reads are one row twice, whatever their texts.
cat >same.yaml <<'Y'
base: base.yaml
settings: {data.root: nowhere, opt.name: tensorgrad}
variants:
  first: {opt.rank: 0.3}
  second: {opt.sparse_ratio: 5.0e-2, opt.gamma: 0.9}
  third: {opt.n_epochs: 3}
  matrix: {opt.name: galore}
  dense: {opt.name: adam}
  slower: {opt.name: adam, opt.update_proj_gap: 7}
  apollo: {opt.name: adam, opt.rule: apollo}
  other apollo: {opt.name: adam, opt.rule: apollo, opt.rank: 0.5}
Y
expect 1 sweep same.yaml --out bad --dry-run
says err "same.yaml: 2 mistakes" "rows first and second are the same run" "rows dense and slower are the same run"
printf 'base: base.yaml\nsettings: {data.root: nowhere, opt.name: lowrank}\naxes: {opt.sparse_type: [topk, randk]}\n' >same.yaml
expect 1 sweep same.yaml --out bad
says err "rows sparse_type=topk and sparse_type=randk are the same run"
expect 1 sweep small.yaml --out bad --scale tiny
says err "smoke, grid, listed and paper"
expect 1 sweep small.yaml --out bad --data.batch_size 900000 --fno.hidden_channels 9000
says err "Adam_weight_decay=0: does not fit"
expect 2 sweep small.yaml
expect 2 sweep small.yaml --out bad --rank 2/2
expect 2 sweep small.yaml --out bad --max-time soon
[ ! -e bad ] || complain "a refused sweep made its folder"

# ---- dry run ----
expect 0 sweep small.yaml --out d --dry-run --json --scale grid
flat out >plan
sed -nE 's/.*\.runs\.[0-9]*\.name.*_(s[01]).*/\1/p' plan | tr -d '\n' | grep -qx 's0s0s0s0s1s1s1s1' ||
    complain "$last: not 8 runs, seed by seed"
says out "generate\": \"darcy --n-train=16"
seconds() { awk '$1 == ".seconds" { print $2 }' "$1"; }
first=$(seconds plan)
expect 0 sweep small.yaml --out d --dry-run --json --scale grid --stage2.opt.n_epochs 6 --stage2.data.batch_size 2
flat out >staged
awk -v a="$first" -v b="$(seconds staged)" 'BEGIN { exit !(b > 2 * a) }' || complain "$last: a second stage takes no time"
awk '$1 ~ /memory$|seconds$/ && !($2 > 0) { exit 1 }' plan || complain "$last: no memory or time"
expect 0 sweep small.yaml --out d --dry-run --scale listed
[ "$(grep -c '_s0' out)" -eq 4 ] || complain "$last: entries of a list do not go together"
# A variant with a value of its own for an axis, or null, is not varied along it.
cat >own.yaml <<'Y'
base: base.yaml
settings: {data.root: nowhere}
variants:
  Adam: {opt.name: adam, opt.rank: null, opt.second_rank: null}
  GaLore: {opt.name: galore, opt.rank: 0.5}
  Tucker: {opt.name: lowrank}
axes: {opt.weight_decay: [0, 1e-4]}
list: {opt.rank: [0.25, 0.50, 1.0], opt.second_rank: [0.2, 0.4, 0.9]}
baseline: Adam
Y
expect 0 sweep own.yaml --out d --dry-run
[ "$(grep -c '_s0 ' out)" -eq 10 ] || complain "$last: not 10 rows"
says out "Adam_weight_decay=0_s0 " "Adam_weight_decay=1e-4_s0 " "GaLore_weight_decay=0_rank=0.5_s0 " \
    "Tucker_weight_decay=0_rank=0.25_second_rank=0.2_s0 " "Tucker_weight_decay=1e-4_rank=1.0_second_rank=0.9_s0 "
[ ! -e d ] || complain "a dry run made its folder"

# ---- a sweep, and the same again ----
expect 0 sweep small.yaml --out d --jobs 2
[ "$(wc -l <d/results.jsonl)" -eq 4 ] || complain "$last: not 4 results"
grep -c '"status":"finished"' d/results.jsonl | grep -qx 4 || complain "$last: not all finished"
find d/runs d/results -type f -exec md5sum {} + | sort >before
expect 0 sweep small.yaml --out d --json
flat out >end
[ "$(at end .kept)" = 4 ] || complain "$last: finished runs were repeated"
find d/runs d/results -type f -exec md5sum {} + | sort | cmp -s - before || complain "$last: files changed"
expect 1 sweep small.yaml --out d --opt.n_epochs 3
says err "holds this run with opt.n_epochs 2, now it is 3"

# ---- a run that was begun goes on, to the same bits ----
run=Adam_weight_decay=0_s1
mkdir -p half/runs
cp -r d/results half/
rm half/results/$run.json
expect 0 train d/configs/$run.yaml --run half/runs/$run --opt.n_epochs 1 --threads 1 -q
expect 0 sweep small.yaml --out half --data.root "$work/d/data" --dry-run # samples are counted in the file
says out "about "
grep -q '?' out && complain "$last: no time"
expect 0 sweep small.yaml --out half --data.root "$work/d/data" --jobs 2
[ "$(find half/runs -mindepth 1 -maxdepth 1)" = half/runs/$run ] || complain "$last: repeated finished runs"
[ ! -e half/data ] || complain "$last: generated data that nobody reads"
cmp -s {d,half}/runs/$run/checkpoints/step-0000000004.safetensors ||
    complain "a resumed run differs"

# ---- learning rates, chosen on samples that are not tested on ----
cat >search.yaml <<'Y'
title: Rates
base: base.yaml
settings: {data.root: d/data}
variants: {Adam: {opt.name: adam, published: 0.7}, "Tucker | <b>": {opt.name: lowrank}}
seeds: [0, 1]
baseline: Adam
metric: 8.h1
lr: {values: [1e-3, 1e-1], n_validation: 4, epochs: 1}
Y
expect 0 sweep search.yaml --out search --jobs 2
[ "$(grep -c '"search":true.*"test":{},"validation":{"l2"' search/results.jsonl)" -eq 4 ] ||
    complain "$last: searches look at test data, or not at validation data"
for method in Adam Tucker; do
    best=$(grep "\"$method.*\"search\":true" search/results.jsonl |
        sed -E 's/.*"rate":([^,]*),.*"validation":\{"l2":[^,]*,"h1":([^}]*)\}.*/\2 \1/' | sort -g | head -1)
    grep "\"name\":\"${method}.*_s1\".*\"search\":false" search/results.jsonl | grep -qF "\"rate\":${best#* }," ||
        complain "$method was not trained with its best rate, ${best#* }"
done
mkdir -p norm/results
for trial in 1e-3:0.1:0.9 1e-1:0.9:0.1; do # one is better in L2, the other in H1
    IFS=: read -r rate l2 h1 <<<"$trial"
    sed -E "s/(\"l2\":)[^,}]*/\1$l2/; s/(\"h1\":)[^,}]*/\1$h1/" \
        "search/results/Adam_lr=${rate}_s0.json" >"norm/results/Adam_lr=${rate}_s0.json"
done
sed 's/, "Tucker.*lowrank}//; s/seeds: .*/seeds: 0/; s/epochs: 1}/epochs: 1, norm: l2}/' search.yaml >norm.yaml
expect 0 sweep norm.yaml --out norm
grep -q '"name":"Adam_s0".*"rate":0.001' norm/results.jsonl || complain "$last: not the rate that is best in L2"
sed 's/values: \[/values: [1e-2, /' search.yaml >wider.yaml
expect 1 sweep wider.yaml --out search
says err "Adam_s0: $work/search holds this run, at the best of rates without 1e-2"
printf '%s\n' 'base: base.yaml' 'settings: {data.root: d/data}' 'lr: {values: [1e-3, x], norm: l1}' >bad.yaml
expect 1 sweep bad.yaml --out bad
says err "lr.n_validation is needed" "'x' is not a learning rate" "lr.norm: 'l1' is not l2 or h1"

# ---- tables ----
grep -qE '^\| Adam \| 0\.[01]+† \| .* ± .* \| 0.7 \|' search/table.md || complain "no row of Adam in table.md"
says search/table.md 'Tucker \| <b>' "Welch's t-test of H1 at 8 against Adam" "the best one may be beyond"
grep -q "paper's sizes" search/table.md && complain "table.md: other sizes than published, which is not so"
mean=$(grep '"search":false' search/results.jsonl | grep '"variant":"Adam"' |
    sed -E 's/.*"8":\{"l2":([^,]*),.*/\1/' | awk '{ s += $1; q += $1 * $1 } END { m = s / NR
        printf "%.4g ± %.2g", m, sqrt((q - NR * m * m) / (NR - 1) / NR) }')
grep '^| Adam' search/table.md | grep -qF "$mean" || complain "table.md: L2 of Adam is not $mean"
[ "$(grep -o '\*\*' search/table.md | wc -l)" -eq 4 ] || complain "table.md: not one best of each error"
says search/report.html 'Tucker | &lt;b&gt;' 'class="band' 'data-metric="test.8.h1"' 'data-metric="error.state"'
lost=$(find search/runs -name projections.jsonl ! -path '*_lr=*' -exec sed -E 's/.*"error":([^,]*),.*/\1/' {} + | sort -g)
grep 'data-metric="projection.error"' search/report.html |
    sed -E 's/.*data-min="([^"]*)".*data-median="([^"]*)".*data-max="([^"]*)".*/\1 \2 \3/' >box
awk -v box="$(cat box)" 'NR == 1 { low = $1 } { high = $1 } END {
    split(box, b, " "); m = (low + high) / 2
    exit !(NR == 2 && b[1] == low && b[3] == high && (b[2] - m) ^ 2 < 1e-12) }' <<<"$lost" ||
    complain "report.html: box $(cat box) of projection errors $lost"
expect 0 report search -o again.html
cmp -s again.html search/report.html || complain "$last: another page than the sweep's"
expect 0 report search -o again.md --json
cmp -s again.md search/table.md || complain "$last: another table than the sweep's"
# A run whose metrics are damaged is named; of the others there are curves.
damaged=$(find search/runs -name metrics.jsonl ! -path '*_lr=*' | sort | head -1)
sed -i '1s/^/garbage/' "$damaged"
"$tgrad" report search -o again.html >out 2>err && complain "report of a sweep with a damaged run: exit code 0"
says err "metrics.jsonl:1: this is not a line of metrics"
says out "wrote again.html"
says again.html 'data-metric="test.8.h1"' 'data-metric="error.state"'
sed -i '1s/^garbage//' "$damaged"
echo '{}' >search/sweep.json
expect 1 report search -o again.html
says err "sweep.json: not what tgrad sweep writes"

# ---- only plans ----
printf '%s\n' 'base: base.yaml' 'run: plan' 'settings: {data.root: d/data}' \
    'axes: {fno.n_modes: [[4, 4], [8, 8]]}' >plan.yaml
expect 0 sweep plan.yaml --out plans
[ "$(grep -c '^| n_modes=.* KiB | .* MiB |$' plans/table.md)" -eq 2 ] || complain "$last: no memory in table.md"
[ -z "$(ls plans/runs)" ] || complain "$last: trained"

# Published values: one for all rows, one for each row, one for each value of the first axis; columns by name.
cat >published.yaml <<'Y'
base: base.yaml
run: plan
settings: {data.root: d/data}
variants:
  a: {published: 0.7}
  b: {opt.name: galore, published: [1.1, 1.2, 1.3, 1.4]}
  c: {opt.name: lowrank, published: {train: [2.1, null], L2: 2.5}}
  d: {opt.name: tensorgrad, opt.eps: null, published.train: [3.1 GB, 3.2]}
axes: {opt.weight_decay: [0, 1e-4], opt.eps: [1e-6, 1e-7]}
Y
expect 0 sweep published.yaml --out columns
cat >wanted <<'T'
| method | opt.weight_decay | opt.eps | published | published train | published L2 | optimizer state | peak memory |
| a | 0 | 1e-6 | 0.7 | – | –
| a | 0 | 1e-7 | 0.7 | – | –
| b | 0 | 1e-7 | 1.2 | – | –
| b | 1e-4 | 1e-6 | 1.3 | – | –
| c | 0 | 1e-7 | – | 2.1 | 2.5
| c | 1e-4 | 1e-6 | – | – | 2.5
| d | 0 | – | – | 3.1 GB | –
| d | 1e-4 | – | – | 3.2 | –
T
while read -r row; do
    grep -qF "$row" columns/table.md || complain "$last: no row '$row'"
done <wanted
sed -E ':a; N; $!ba; s/\{\s*"": ("[^"]*")\s*\}/\1/g' columns/sweep.json >old.json # as earlier versions wrote it
grep -q '"published": "1.2"' old.json || complain "no old sweep.json"
cp old.json columns/sweep.json
cp columns/table.md now.md
expect 0 report columns -o again.md
cmp -s again.md now.md || complain "$last: another table than with {column: value}"
sed -i 's/GB, 3.2/GB, 3.2, 3.3/' published.yaml
expect 1 sweep published.yaml --out bad
says err "variants.d.published.train has 3 values for 2 rows of the variant, or 2 of the first axis"

# ---- a job array ----
expect 0 sweep small.yaml --out parts --rank 1/2 --scale smoke --json
flat out >end
[ "$(at end .finished)" = 1 ] || complain "$last: one of two runs is this rank's"
expect 0 sweep small.yaml --out parts --rank 0/2 --scale smoke
[ "$(wc -l <parts/results.jsonl)" -eq 2 ] || complain "$last: not the results of both ranks"
says parts/table.md "Published values are of the paper's sizes, all others of scale smoke" \
    "tgrad sweep small.yaml --scale smoke"

# ---- one fails, the others do not ----
expect_failure() { # what fails may have said something before
    exits 1 "$@"
    says out "failed, in"
}
cat >failing.yaml <<'Y'
base: base.yaml
settings: {data.root: d/data}
variants:
  wild: {opt.name: adam, opt.init: nowhere.safetensors}
  tame: {} # the base as it is
metric: 99.h1
Y
expect_failure sweep failing.yaml --out failing
says err "wild_s0: nowhere.safetensors" "logs/wild_s0.log" "no run was tested on that grid; using 8.h1"
grep -q '"name":"tame_s0".*"status":"finished"' failing/results.jsonl || complain "$last: tame did not finish"

# A search that fails reports the reason, and no log that does not exist.
printf 'base: base.yaml\nsettings: {data.root: d/data}\nlr: {values: [1e-3], n_validation: 10000}\n' >none.yaml
expect_failure sweep none.yaml --out none --threads 1
says err "no learning rate of the search gave a finite error: run_lr=1e-3_s0: " "10000 samples for validation leave none"
grep -q 'logs/run_s0.log' err && complain "$last: names a log that is not there"

# ---- signals and --max-time: runs save, the sweep says how to go on ----
sed 's/n_epochs: 2/n_epochs: 1000000, save_every: 1000000, eval_interval: 1000000/' base.yaml >endless.yaml
printf 'base: endless.yaml\nsettings: {data.root: d/data}\nseeds: [0, 1]\n' >long.yaml
"$tgrad" sweep long.yaml --out long --jobs 2 >out 2>err &
pid=$!
waits_for $pid has_lines long/runs/run_s0/metrics.jsonl 2
waits_for $pid has_lines long/runs/run_s1/metrics.jsonl 2
kill -TERM $pid
wait $pid
[ $? -eq 143 ] || complain "a sweep that is stopped must end with 128 + 15"
says out "stopped by signal 15" "the same command resumes"
for s in 0 1; do
    compgen -G "long/runs/run_s$s/checkpoints/step-*.safetensors" >/dev/null || complain "run_s$s did not save"
done
timed_out() { # timed_out <arguments of sweep ..>
    last="sweep $*"
    "$tgrad" sweep "$@" >out 2>err </dev/null
    [ $? -eq 124 ] || complain "$last: must end with 124"
}
timed_out long.yaml --out long --max-time 0.3s
says out "stopped by --max-time"
timed_out small.yaml --out late --max-time 0.001s # over when the data are there
says out "0 of 4 runs finished" "stopped by --max-time"
[ -z "$(ls late/runs)" ] || complain "$last: began a run"

[ $failures -eq 0 ]
