#!/usr/bin/env bash
# The page of tgrad report in a real browser; skipped where there is none.
#
#   tests/test_report_page.sh build/bin/tgrad <source tree> <build tree>
set -uo pipefail
tgrad=$(realpath "$1")
source_tree=$(realpath "$2")
# shellcheck source=support/runs.sh
source "$source_tree/tests/support/runs.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

make_run adam 60
make_run tensorgrad 30
long='a <b>run with&nbsp;markup and-a-name-that-is-longer-than-anything-one-would-type-by-hand'
make_run "$long" 45
make_run line 20
floats 0 1 2 1 0 0 1 3 1 0 0 1 2 1 0 | samples line/samples.safetensors F32 5 1,1,5 20
"$tgrad" report adam tensorgrad "$long" line -o page.html || exit 1
"$source_tree/scripts/check_report" page.html
code=$?
[ $code -eq 0 ] || exit $code

# The check can fail: a page with a script, and one with pale text.
sed 's/<main>/<main><script>alert(1)<\/script>/' page.html >script.html
"$source_tree/scripts/check_report" script.html >/dev/null 2>&1 && echo 'FAILED: a script passed' && exit 1
sed 's/--soft:#59616c/--soft:#aaaaaa/' page.html >pale.html
"$source_tree/scripts/check_report" pale.html >/dev/null 2>&1 && echo 'FAILED: pale text passed' && exit 1
echo ok
