#!/usr/bin/env bash
# The page of tgrad report in a real browser; skipped where there is none.
#
#   tests/cli/report/test_report_page.sh build/bin/tgrad <source tree> <build tree>
set -uo pipefail
tgrad=$(realpath "$1")
source_tree=$(realpath "$2")
# shellcheck source=../../support/runs.sh
source "$source_tree/tests/support/runs.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

make_run adam 60
make_run tensorgrad 30
long='a <b>run with&nbsp;markup and-a-name-that-is-longer-than-anything-one-would-type-by-hand'
make_run "$long" 45
make_run pairs 50 # two channels
sed -i -E 's/"h1":([^,}]*)\}/"h1":\1,"l2_channels":[0.25,1.5],"h1_channels":[\1,null]}/g' pairs/metrics.jsonl
floats 1 1 1 1 1 1 1 1 2 0 0 0 0 0 0 0 2 1 0 0 1 1 1 1 | samples pairs/samples.safetensors F32 3 1,2,2,2 32
make_run wave 40 # complex numbers
floats 0 1 0 1 0 1 0 1 1 0 1 0 1 0 1 0 0 0 1 0 1 0 1 0 | samples wave/samples.safetensors C64 3 1,1,2,2 32
make_run line 20
floats 0 1 2 1 0 0 1 3 1 0 0 1 2 1 0 | samples line/samples.safetensors F32 5 1,1,5 20
"$tgrad" report adam tensorgrad "$long" pairs wave line -o page.html || exit 1
"$source_tree/scripts/check_report" page.html
code=$?
[ $code -eq 0 ] || exit $code

# The check can fail: a script, pale text, small text, and something wider than a narrow screen.
sed 's/<main>/<main><script>alert(1)<\/script><div style="width:30rem">wide<\/div>/
    s/--soft: #59616c/--soft: #aaaaaa/
    s/^td small {.*/td small { font-size: .5rem; }/' page.html >spoiled.html
"$source_tree/scripts/check_report" spoiled.html >/dev/null 2>found && echo 'FAILED: a spoiled page passed' && exit 1
for text in 'the console has messages' 'light, 400 pixels: contrast' 'dark, 1400 pixels: text of 8.0 pixels' \
    'dark, 400 pixels: the page is'; do
    grep -qF "$text" found || { echo "FAILED: the check does not say '$text'" && exit 1; }
done
echo ok
