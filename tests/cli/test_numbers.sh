#!/usr/bin/env bash
# Every number that a person reads says the same: metrics.jsonl, metrics.csv, the lines and the JSON
# of train, the table and the JSON of eval, and the report, for a model with three output channels
# tested at two resolutions; and what they say is what the documentation defines.
#
#   tests/cli/test_numbers.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
# shellcheck source=../support/checks.sh
source "$source_tree/tests/support/checks.sh"
# shellcheck source=../support/json.sh
source "$source_tree/tests/support/json.sh"
# shellcheck source=../support/arrays.sh
source "$source_tree/tests/support/arrays.sh"

# ---- data and a run ----

mkdir -p data
for row in 'train 8 9 1' 'test 8 5 3' 'test 16 5 5'; do
    read -r part n samples seed <<<"$row"
    bytes "($samples, 1, $n, $n)" $((samples * n * n)) "$seed" "data/toy_${part}_${n}_x.npy"
    bytes "($samples, 3, $n, $n)" $((3 * samples * n * n)) $((seed + 1)) "data/toy_${part}_${n}_y.npy"
done
cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 2, out_channels: 3}
opt: {name: adam, n_epochs: 4, learning_rate: 0.01, eval_interval: 2, training_loss: l2}
data: {root: data, set: toy, train_resolution: 8, test_resolutions: [8, 16], batch_size: 4,
       test_batch_sizes: 2, encode_output: false}
Y
expect 0 train config.yaml --run run --threads 1
cp out lines
for epoch in 1 2 3 4; do
    sed -n ${epoch}p run/metrics.jsonl >one && flat one >"epoch.$epoch"
done

# ---- metrics.jsonl: of a sample, all channels together; of each channel by itself ----

grep -q '^\.test\.' epoch.1 && complain "a test error in an epoch without evaluation"
for n in 8 16; do
    for norm in l2 h1; do
        mean=$(at epoch.4 .test.$n.$norm)
        awk -v mean="$mean" -v place=".test.$n.${norm}_channels." 'index($1, place) == 1 {
            count++; least = count == 1 || $2 < least ? $2 : least; most = $2 > most ? $2 : most }
            END { exit !(count == 3 && least < mean && mean < most) }' epoch.4 ||
            complain "$norm at $n is not between those of the channels"
    done
done

# ---- metrics.csv: the same numbers under the right names ----

[ "$(head -1 run/metrics.csv)" = \
    epoch,step,lr,train_loss,step_ms,peak_bytes,l2_8,h1_8,l2_16,h1_16 ] || complain "header of the CSV"
last=metrics.csv
cell() { # cell <epoch> <column>
    awk -F, -v row=$(($1 + 1)) -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i
        width = NF } NR == row && NF == width { print $at }' run/metrics.csv
}
for epoch in 1 2 3 4; do
    for pair in epoch=.epoch step=.step lr=.lr train_loss=.train.loss peak_bytes=.memory.peak; do
        near "$(cell $epoch ${pair%%=*})" "$(at epoch.$epoch ${pair#*=})" 1e-9 "$pair"
    done
    near "$(cell $epoch step_ms)" "$(at epoch.$epoch .step_ms)" 1e-5
    for n in 8 16; do
        for norm in l2 h1; do
            if [ $((epoch % 2)) = 0 ]; then
                near "$(cell $epoch ${norm}_$n)" "$(at epoch.$epoch .test.$n.$norm)" 1e-9
            else
                [ -z "$(cell $epoch ${norm}_$n)" ] || complain "an error in epoch $epoch of the CSV"
            fi
        done
    done
done

# A later stage may be tested elsewhere; the columns stay what they are called.
expect 0 train config.yaml --run stages --quiet --opt.n_epochs 1 --data.test_resolutions 8 \
    --stage2.opt.n_epochs 1 --stage2.data.test_resolutions '[16, 8]'
near "$(sed -n 3p stages/metrics.csv | cut -d, -f7)" "$(sed -n 2p stages/metrics.jsonl >one && at <(flat one) .test.8.l2)" 1e-9
[ "$(sed -n 3p stages/metrics.csv | tr -dc , | wc -c)" -eq 7 ] || complain "columns of the second stage"

# ---- train: its lines and its JSON ----

for epoch in 2 4; do
    for n in 8 16; do
        wanted=$(printf '%s: l2 %.5f h1 %.5f' $n "$(at epoch.$epoch .test.$n.l2)" "$(at epoch.$epoch .test.$n.h1)")
        grep "^epoch *$epoch/4 " lines | grep -qF "$wanted" || complain "epoch $epoch does not say $wanted"
    done
    mean=$(at epoch.$epoch .train.loss | awk '{ printf "%.5f", $1 / 3 }') # over the channels, as the errors are
    grep "^epoch *$epoch/4 " lines | grep -qF "train: l2 $mean " || complain "epoch $epoch does not say $mean"
done
expect 0 train config.yaml --run again --threads 1 --json
flat out >ended
near "$(at ended .train_loss)" "$(at epoch.4 .train.loss)"
near "$(at ended .step)" "$(at epoch.4 .step)" 0
near "$(at ended .epoch)" 4 0
while read -r place value; do
    near "$(at ended "$place")" "$value" 1e-6 "$place"
done < <(grep '^\.test\.' epoch.4)

# ---- eval: every file at every resolution ----

expect 0 eval run/checkpoints/recent.safetensors --threads 1 --json \
    -d data/toy_test_8_x.npy,data/toy_test_16_x.npy --resolution 8
flat out >small
expect 0 eval run/checkpoints/recent.safetensors --threads 1 --json -d data/toy_test_8_x.npy,data/toy_test_16_x.npy
flat out >large
for row in 'large 0 8' 'large 1 16' 'small 0 8'; do
    read -r file index n <<<"$row"
    near "$(at $file .results.$index.resolution)" $n 0
    near "$(at $file .results.$index.samples)" 5 0
    while read -r place value; do
        near "$(at $file .results.$index${place#.test.$n})" "$value" 1e-6 "$place"
    done < <(grep "^\.test\.$n\." epoch.4)
    for norm in l2 h1; do # the mean of the samples
        near "$(awk -v place=".results.$index.per_sample.$norm." 'index($1, place) == 1 { sum += $2; count++ }
            END { print count == 5 ? sum / count : "none" }' $file)" "$(at $file .results.$index.$norm)"
    done
done
[ "$(at small .results.1.resolution)" = 8 ] || complain "the second file is not at 8"
[ "$(at small .results.1.l2)" != "$(at large .results.1.l2)" ] || complain "8 and 16 have one error"

expect 0 eval run/checkpoints/recent.safetensors --threads 1 -d data/toy_test_8_x.npy,data/toy_test_16_x.npy
for index in 0 1; do
    read -r worst sample < <(awk -v place=".results.$index.per_sample.l2." 'index($1, place) == 1 && $2 > most {
        most = $2; at = substr($1, length(place) + 1) + 1 } END { print most, at }' large)
    n=$(at large .results.$index.resolution)
    awk -v file="data/toy_test_${n}_x.npy" -v n="$n" -v l2="$(printf %.6f "$(at large .results.$index.l2)")" \
        -v h1="$(printf %.6f "$(at large .results.$index.h1)")" -v worst="$(printf %.6f "$worst")" -v sample="$sample" \
        -v median="$(printf %.6f "$(at large .results.$index.l2_quantiles.2)")" \
        '$1 == file && NF == 9 && $2 == n && $3 == 5 && $4 == l2 && $5 == h1 && $6 == median && $8 == worst &&
            $9 == sample { found = 1 } END { exit !found }' out || complain "$last: row of $n: $(cat out)"
    for c in 0 1 2; do
        awk -v file="data/toy_test_${n}_x.npy" -v n="$n" -v c=$((c + 1)) \
            -v l2="$(printf %.6f "$(at large .results.$index.l2_channels.$c)")" \
            -v h1="$(printf %.6f "$(at large .results.$index.h1_channels.$c)")" \
            '$1 == file && NF == 5 && $2 == n && $3 == c && $4 == l2 && $5 == h1 { found = 1 }
            END { exit !found }' out || complain "$last: channel $c at $n: $(cat out)"
    done
done

# ---- the training loss: a sum over channels, a mean over samples ----

# With a learning rate of next to nothing an epoch's loss is that of the first weights.
expect 0 train config.yaml --run still --quiet --threads 1 --opt.n_epochs 1 --opt.learning_rate 1e-30
expect 0 eval still/checkpoints/recent.safetensors --threads 1 --json -d data/toy_train_8_x.npy
flat out >start
sed -n 1p still/metrics.jsonl >one
near "$(at <(flat one) .train.loss)" "$(awk '$1 ~ /l2_channels/ { sum += $2 } END { print sum }' start)" 1e-4
last='the loss of h1 + 0.5*l2'
expect 0 train config.yaml --run still2 --quiet --threads 1 --opt.n_epochs 1 --opt.learning_rate 1e-30 \
    --opt.training_loss 'h1 + 0.5*l2'
sed -n 1p still2/metrics.jsonl >one
near "$(at <(flat one) .train.loss)" "$(awk '$1 ~ /h1_channels/ { sum += $2 }
    $1 ~ /l2_channels/ { sum += $2 / 2 } END { print sum }' start)" 1e-4

# ---- the report ----

# cells <page> <run>: those of its row in the table of results, one per line, without small print.
cells() {
    sed -n '/<table class="results">/,/<\/table>/p' "$1" | grep -F "<tr data-run=\"$2\">" |
        sed 's/<small>[^<]*<\/small>//g; s/<td[^>]*>/\n/g' | sed 's/<.*//' | tail -n +2
}
# bytes_of <text>: "1.2 MiB" as a number.
bytes_of() {
    awk -v text="$1" 'BEGIN { split(text, part, " "); split("B KiB MiB GiB", unit, " ")
        for (i = 1; i <= 4; i++) if (unit[i] == part[2]) { print part[1] * 1024 ^ (i - 1); exit }
        print "no size: " text }'
}
expect 0 report run -o page.html
cells page.html run >row
at_row() { sed -n "$1p" row; }
near "$(at_row 1)" 4 0
near "$(at_row 2)" "$(at epoch.4 .test.8.l2)" 1e-3
near "$(at_row 3)" "$(at epoch.4 .test.8.h1)" 1e-3
near "$(at_row 4)" "$(at epoch.4 .test.16.l2)" 1e-3
near "$(at_row 5)" "$(at epoch.4 .test.16.h1)" 1e-3
optimizer=$(awk '$1 ~ /^\.memory\.(optimizer|factors|indices)$/ { sum += $2 } END { print sum }' epoch.4)
near "$(bytes_of "$(at_row 6)")" "$optimizer" 0.06
near "$(bytes_of "$(at_row 7)")" "$(at epoch.4 .memory.peak)" 0.06

# Times by hand: an even number of epochs has the mean of the two in the middle as its median.
mkdir -p hand
awk 'BEGIN { split("10 80 20 40", ms); for (e = 1; e <= 4; e++) { test = "";
    for (n = 8; n <= 32; n *= 2) test = test sprintf("%s\"%d\":{\"l2\":%g,\"h1\":%g,\"l2_channels\":[%g,%g]," \
        "\"h1_channels\":[%g,%g]}", n > 8 ? "," : "", n, n / e, 100 * n / e, n + e, n - e / 2, 200 + n + e, 200 + n - e)
    printf "{\"epoch\":%d,\"step\":%d,\"lr\":0.25,\"train\":{\"loss\":%g},\"test\":{%s},\"step_ms\":%g,", e, 5 * e, e, test, ms[e]
    printf "\"seconds\":%g,\"memory\":{\"peak\":3145728,\"optimizer\":512,\"factors\":1024,\"indices\":512}," \
        "\"time\":{\"checkpoint\":0.5}}\n", 1.5 * e } }' \
    >hand/metrics.jsonl
expect 0 report hand -o hand.html
cells hand.html hand | paste -sd ' ' >found
[ "$(cat found)" = '4 2.000 200.0 4.000 400.0 8.000 800.0 2.0 KiB 3.0 MiB 30 ms 17 s' ] ||
    complain "the row of the run by hand is $(cat found)"

grep -F '<tr data-run="hand" data-channel="1">' hand.html |
    grep -qF '<td>1</td><td>12.00</td><td>212.0</td><td>20.00</td><td>220.0</td><td>36.00</td><td>236.0</td></tr>' ||
    complain "the first channel of the run by hand"
grep -F '<tr data-run="hand" data-channel="2">' hand.html |
    grep -qF '<td>2</td><td>6.000</td><td>204.0</td><td>14.00</td><td>212.0</td><td>30.00</td><td>228.0</td></tr>' ||
    complain "the second channel of the run by hand"

[ $failures -eq 0 ] && echo ok
exit $((failures > 0))
