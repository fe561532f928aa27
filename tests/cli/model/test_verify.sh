#!/usr/bin/env bash
# Every golden file verifies on every host backend; what is written back equals the file's own
# numbers in shape; a file with one wrong number fails; damaged and foreign files are errors.
set -u
tgrad=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

backends=$("$tgrad" info | awk '/^backend [a-z]+:/ { name = $2 } /^  available  yes/ { print substr(name, 1, length(name) - 1) }')
for file in "$source"/tests/fixtures/{fno,tfno,uno,gno,gino,optim,tucker}_*.safetensors; do
    kind=$(basename "$file" | cut -d_ -f1)
    for backend in $backends; do
        "$tgrad" verify "$kind" "$file" --backend $backend --math fp32 -o "$work/out.safetensors" >"$work/log" 2>&1 ||
            fail "verify $kind $(basename "$file") on $backend: $(tail -1 "$work/log")"
    done
    "$tgrad" inspect "$work/out.safetensors" >"$work/log" 2>&1 || fail "inspect what was written"
    case $kind in
    fno | tfno | uno | gino) grep -q '^out ' "$work/log" && grep -q '^grad.l2.lifting' "$work/log" ||
        fail "$file: no output or gradients written" ;;
    gno) grep -q '^out ' "$work/log" && grep -q '^neighbors_index ' "$work/log" ||
        fail "$file: no output or neighbours written" ;;
    optim) grep -q '^weights ' "$work/log" || fail "$file: no weights written" ;;
    tucker) grep -q '^factor0_it1 ' "$work/log" || fail "$file: no factors written" ;;
    esac
done

golden=$source/tests/fixtures/optim_tg_us_lr.safetensors
# The last float of the file belongs to the expected weights: change it.
cp "$golden" "$work/wrong.safetensors"
size=$(stat -c %s "$work/wrong.safetensors")
printf '\x00\x00\x20\x41' | dd of="$work/wrong.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
"$tgrad" verify optim "$work/wrong.safetensors" >"$work/log" 2>&1
[ $? -eq 1 ] || fail "a wrong expected number must exit 1"
grep -q FAILED "$work/log" || fail "a wrong expected number must be named"

# So does one that is not a number, which is neither below nor above a tolerance.
printf '\x00\x00\xc0\x7f' | dd of="$work/wrong.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
"$tgrad" verify optim "$work/wrong.safetensors" >"$work/log" 2>&1
[ $? -eq 1 ] || fail "an expected number that is NaN must exit 1"

golden_fno=$source/tests/fixtures/fno_2d.safetensors
cp "$golden_fno" "$work/wrong.safetensors"
size=$(stat -c %s "$work/wrong.safetensors")
printf '\x00\x00\x20\x41' | dd of="$work/wrong.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
"$tgrad" verify fno "$work/wrong.safetensors" >"$work/log" 2>&1
[ $? -eq 1 ] || fail "a network that gives something else must exit 1"
grep -q FAILED "$work/log" || fail "what differs must be named"
sed 's/hidden_channels/hiddem_channels/' "$golden_fno" >"$work/key.safetensors"
"$tgrad" verify fno "$work/key.safetensors" >/dev/null 2>"$work/log"
[ $? -eq 1 ] || fail "an unknown key must exit 1"
grep -q "fno.hidden_channels" "$work/log" || fail "the nearest key must be named"

"$tgrad" verify optim "$source/tests/fixtures/tucker_c4.safetensors" >/dev/null 2>"$work/log"
[ $? -eq 1 ] || fail "a file of another kind must exit 1"
grep -q "no tensor named 'w0'" "$work/log" || fail "the missing tensor must be named"
head -c 1000 "$golden" >"$work/short.safetensors"
"$tgrad" verify optim "$work/short.safetensors" >/dev/null 2>&1
[ $? -eq 1 ] || fail "a truncated file must exit 1"
"$tgrad" verify abacus "$golden" >/dev/null 2>&1
[ $? -eq 2 ] || fail "an unknown kind is wrong usage"
"$tgrad" verify optim >/dev/null 2>&1
[ $? -eq 2 ] || fail "a missing file is wrong usage"
"$tgrad" verify tucker "$source/tests/fixtures/tucker_c4.safetensors" --json >"$work/json" || fail "--json"
grep -q '"ok": *true' "$work/json" || fail "JSON says ok"

[ $failures -eq 0 ] && echo "all golden files verified"
exit $((failures > 0))
