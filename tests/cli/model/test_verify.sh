#!/usr/bin/env bash
# Every golden file verifies on every host backend; what is written back equals the file's own
# numbers in shape; a file with one wrong number fails; damaged and foreign files are errors.
source_tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$source_tree/tests/support/checks.sh"

# Of a device that is none only itself: the others are verified by the program proper.
[[ $tgrad == *_fake ]] && list=cuda || list=$(backends)
for file in "$source_tree"/tests/fixtures/{fno,tfno,uno,gno,gino,optim,tucker}_*.safetensors; do
    kind=$(basename "$file" | cut -d_ -f1)
    for backend in $list; do
        "$tgrad" verify "$kind" "$file" --backend $backend --math fp32 -o out.safetensors >log 2>&1 ||
            complain "verify $kind $(basename "$file") on $backend: $(tail -1 log)"
    done
    "$tgrad" inspect out.safetensors >log 2>&1 || complain "inspect what was written"
    case $kind in
    fno | tfno | uno | gino) grep -q '^out ' log && grep -q '^grad.l2.lifting' log ||
        complain "$file: no output or gradients written" ;;
    gno) grep -q '^out ' log && grep -q '^neighbors_index ' log ||
        complain "$file: no output or neighbours written" ;;
    optim) grep -q '^weights ' log || complain "$file: no weights written" ;;
    tucker) grep -q '^factor0_it1 ' log || complain "$file: no factors written" ;;
    esac
done

# change_last FILE BYTES: makes wrong.safetensors of it, whose last float, an expected one, is these bytes.
change_last() {
    head -c -4 "$1" >wrong.safetensors
    printf %b "$2" >>wrong.safetensors
}

golden=$source_tree/tests/fixtures/optim_tg_us_lr.safetensors
change_last "$golden" '\x00\x00\x20\x41'
"$tgrad" verify optim wrong.safetensors >log 2>&1
[ $? -eq 1 ] || complain "a wrong expected number must exit 1"
grep -q FAILED log || complain "a wrong expected number must be named"

# So does one that is not a number, which is neither below nor above a tolerance.
change_last "$golden" '\x00\x00\xc0\x7f'
"$tgrad" verify optim wrong.safetensors >log 2>&1
[ $? -eq 1 ] || complain "an expected number that is NaN must exit 1"

golden_fno=$source_tree/tests/fixtures/fno_2d.safetensors
change_last "$golden_fno" '\x00\x00\x20\x41'
"$tgrad" verify fno wrong.safetensors >log 2>&1
[ $? -eq 1 ] || complain "a network that gives something else must exit 1"
grep -q FAILED log || complain "what differs must be named"
sed 's/hidden_channels/hiddem_channels/' "$golden_fno" >key.safetensors
"$tgrad" verify fno key.safetensors >/dev/null 2>log
[ $? -eq 1 ] || complain "an unknown key must exit 1"
grep -q "fno.hidden_channels" log || complain "the nearest key must be named"

"$tgrad" verify optim "$source_tree/tests/fixtures/tucker_c4.safetensors" >/dev/null 2>log
[ $? -eq 1 ] || complain "a file of another kind must exit 1"
grep -q "no tensor named 'w0'" log || complain "the missing tensor must be named"
head -c 1000 "$golden" >short.safetensors
"$tgrad" verify optim short.safetensors >/dev/null 2>&1
[ $? -eq 1 ] || complain "a truncated file must exit 1"
"$tgrad" verify abacus "$golden" >/dev/null 2>&1
[ $? -eq 2 ] || complain "an unknown kind is wrong usage"
"$tgrad" verify optim >/dev/null 2>&1
[ $? -eq 2 ] || complain "a missing file is wrong usage"
"$tgrad" verify tucker "$source_tree/tests/fixtures/tucker_c4.safetensors" --json >json || complain "--json"
grep -q '"ok": *true' json || complain "JSON says ok"

[ $failures -eq 0 ]
