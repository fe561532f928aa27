#!/usr/bin/env bash
# tgrad report on run folders made by hand: what the page holds, that nothing in a file can become
# markup, runs that go on or were cut off, and folders that are not what they should be.
#
#   tests/cli/report/test_report.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../../support/runs.sh
source "$(realpath "$2")/tests/support/runs.sh"
# shellcheck source=../../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

run() { # run <exit code> <arguments of report ..>
    expect "$1" report "${@:2}"
}

# lacks <file> <regular expression ..>
lacks() {
    local file=$1 text
    shift
    for text in "$@"; do
        if grep -qiE -- "$text" "$file"; then complain "$last: '$text' in $file"; fi
    done
}

# Every tag is closed in order, ids are unique, and nothing is loaded from anywhere.
well_formed() {
    lacks "$1" '<script' 'https?:' 'src="[^d]' 'url\(' '@import' '<link' '<iframe' '>nan<' '"nan' '-?inf"'
    command -v python3 >/dev/null || return 0
    python3 - "$1" <<'P' || complain "$last: $1 is not well-formed"
import sys
from html.parser import HTMLParser
void = {"meta", "img", "br"}
stack, ids = [], set()
class Check(HTMLParser):
    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id":
                assert value not in ids, value
                ids.add(value)
            assert not key.startswith("on"), key
        if tag not in void:
            stack.append(tag)
        if tag == "img":
            assert dict(attributes)["alt"], "an image without alt"
            assert dict(attributes)["src"].startswith("data:image/png;base64,")
        if tag == "svg":
            assert dict(attributes)["role"] == "img" and dict(attributes)["aria-label"]
    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)
    def handle_endtag(self, tag):
        assert stack and stack[-1] == tag, (tag, stack[-3:])
        stack.pop()
parser = Check()
parser.feed(open(sys.argv[1], encoding="utf-8").read())
parser.close()
assert not stack, stack
P
}

# curve <page> <run> <metric> <values of y>: the curve carries exactly these values.
curve() {
    grep -oF "data-run=\"$2\" data-metric=\"$3\"" "$1" >/dev/null ||
        complain "$last: no curve $3 of $2"
    grep -oE "data-run=\"$2\" data-metric=\"$3\" data-x=\"[^\"]*\" data-y=\"$4\"" "$1" >/dev/null ||
        complain "$last: curve $3 of $2 is not $4"
}

# ---- one run, several runs ----

make_run adam 60
make_run tensorgrad 30
run 0 adam
says out 'wrote report.html: 1 run'
well_formed report.html
says report.html '<!doctype html>' '<h1>adam</h1>' 'on <em>darcy</em>, trained at resolution 3' \
    'tested at 3 and 6' '<section id="results">' '<section id="curves">' '<section id="samples">' \
    '<section id="memory">' '<section id="time">' '<section id="settings">' 'id="making"' \
    'prefers-color-scheme:dark' 'Every setting (8)' 'tgrad report adam -o report.html' \
    'tgrad train adam/config.yaml --run NEW_FOLDER' "default-src 'none'"
lacks report.html 'class="badge' 'What differs' 'not finished'
curve report.html adam train.loss '0.6,0.3,0.2,0.15,0.12,0.1'
curve report.html adam test.3.l2 '0.075,0.0375,0.025'
curve report.html adam test.6.h1 '0.3,0.15,0.1'
curve report.html adam lr '0.005,0.005,0.005,0.005,0.005,0.005'
says report.html 'data-name="weights" data-value="1048576"' '1.2 MiB' '20 ms' '1.5 s' '4.0 MiB' \
    'data-name="training steps" data-value="1.2"' 'data-name="evaluation and saving" data-value="0.3"'
# The optimizer's state are 1228800 bytes of moments and 4096 of factors, and nothing else.
tr '\n' ' ' <report.html | grep -oE '>Optimizer state<.*>Everything<' >state.html
says state.html 'x="99.668%" width="0.332%" height="100%" data-name="factors" data-value="4096"' \
    '<div class="bar-value">1.2 MiB<'

# Stable ranks of the gradients: means over the weights; a line that is cut off is left out.
cat >tensorgrad/stable_ranks.jsonl <<'JSON'
{"epoch":0,"step":0,"parameters":[{"name":"a","stable_rank":[4,2]},{"name":"b","stable_rank":[2,null,3]}]}
{"epoch":2,"step":4,"parameters":[{"name":"a","stable_rank":[2,1.5]},{"name":"b","stable_rank":[1,1.5,2]}]}
{"epoch":4,"step":8,"param
JSON
run 0 adam tensorgrad -o two.html --json
curve two.html tensorgrad stable_rank.1 '3,1.5'
curve two.html tensorgrad stable_rank.2 '2,1.5'
curve two.html tensorgrad stable_rank.3 '3,2'
lacks two.html 'stable_rank.4' 'data-run="adam" data-metric="stable_rank'
says out '"report": "two.html"' '"name": "tensorgrad"' '"epochs": 6' '"bytes": '
well_formed two.html
says two.html '<h1>adam and tensorgrad</h1>' 'class="badge c1">1<' 'class="badge c2">2<' \
    '<strong>tensorgrad</strong> ends with the lowest' '50.0' 'below adam (0.02500)' \
    '<td class="best">0.01250' 'What differs between the runs' '<code>opt.rank</code>' \
    '<code>0.60</code>' '<code>0.30</code>' 'Settings that all runs share (7)' \
    'data-run="adam" data-metric="memory"' 'data-run="tensorgrad" data-metric="step_ms"'
curve two.html tensorgrad train.loss '0.3,0.15,0.1,0.075,0.06,0.05'
run 0 adam tensorgrad -o again.html
cmp -s <(sed 's/two.html/X/' two.html) <(sed 's/again.html/X/' again.html) ||
    complain "the same page differs"

# The pictures: input, truth, then prediction and error of each run, for two samples.
[ "$(grep -c '<img' two.html)" -eq 12 ] || complain "$(grep -c '<img' two.html) pictures, not 12"
says two.html 'Error of adam: from 0.000 to 1.000, L² 0.3536' 'Truth: from 0.000 to 2.000' \
    'Error of tensorgrad: from −1.000 to 0.000' 'Resolution 3, as trained'
grep -oE 'base64,[^"]*' two.html | sed -n 1p | cut -d, -f2 | base64 -d >first.png ||
    complain "the picture is not base64"
[ "$(head -c 4 first.png | tail -c 3)" = PNG ] || complain "the picture is no PNG"
run 0 adam --samples 0 -o none.html
lacks none.html '<img' 'id="samples"'
run 0 adam --samples 1 -o one.html --title 'A <b>title</b> & more'
[ "$(grep -c '<img' one.html)" -eq 4 ] || complain "--samples 1 shows $(grep -c '<img' one.html)"
says one.html '<h1>A &lt;b&gt;title&lt;/b&gt; &amp; more</h1>' \
    "--title &#39;A &lt;b&gt;title&lt;/b&gt; &amp; more&#39; --samples 1"

# Names: the last part of the path, or all of it where that is not enough.
mkdir -p a b && cp -r adam a/run && cp -r adam b/run
run 0 a/run/ b/run -o names.html
well_formed names.html
says names.html 'data-run="a/run/"' 'data-run="b/run"' 'The runs have the same settings'
(cd adam && "$tgrad" report . -o ../dot.html) >/dev/null 2>&1
says dot.html '<h1>adam</h1>'
many=()
for i in {1..10}; do cp -r adam "run$i" && many+=("run$i"); done
run 0 "${many[@]}" -o many.html
well_formed many.html
says many.html '<h1>10 runs</h1>' 'curve c2 dashed'

# ---- one, three dimensions, complex numbers, NaN ----

cp -r adam line && floats 0 1 2 1 0 0 1 3 1 0 0 1 2 1 0 | samples line/samples.safetensors F32 5 1,1,5 20
run 0 line -o line.html
well_formed line.html
curve line.html truth sample.5.0.output '0,1,3,1,0'
curve line.html line sample.5.0.output '0,1,2,1,0'
curve line.html line sample.5.0.error '0,0,-1,0,0'
says line.html 'Resolution 5, finer than trained' 'data-run="truth" data-metric="spectrum.5" data-x="1,2"' \
    'data-run="line" data-metric="spectrum.5" data-x="1,2"'
cp -r adam cube && floats 0 0 0 0 1 1 1 1 0 0 0 0 2 2 2 2 0 0 0 0 3 3 3 3 |
    samples cube/samples.safetensors F32 2 1,1,2,2,2 32
run 0 cube -o cube.html
says cube.html 'slice 2 of 2' 'Truth: from 2.000 to 2.000' 'Error of cube: from 1.000 to 1.000' \
    'coarser than trained'
cp -r adam wave && floats 0 1 0 1 0 1 0 1 1 0 1 0 1 0 1 0 0 0 1 0 1 0 1 0 |
    samples wave/samples.safetensors C64 3 1,1,2,2 32
run 0 wave -o wave.html
well_formed wave.html
# Complex errors are moduli: their picture has the half of the colours that the legend shows, white
# for 0 and red for 1, and no blue.
if command -v python3 >/dev/null; then
    python3 - wave.html <<'P' || complain "$last: colours of the complex error"
import base64, re, sys, zlib
picture = base64.b64decode(re.findall(r'base64,([^"]*)"', open(sys.argv[1]).read())[-1])
def chunk(name):
    at = picture.index(name)
    return picture[at + 4:at + 4 + int.from_bytes(picture[at - 4:at], 'big')]
palette, rows = chunk(b'PLTE'), zlib.decompress(chunk(b'IDAT'))
used = set(rows[1:3] + rows[4:6])  # 2 x 2, a filter byte before each row
colours = sorted((tuple(palette[3 * i:3 * i + 3]) for i in used), key=sum)
red, white = colours
assert min(white) > 230 and red[0] > 2 * red[2], colours
P
fi
says wave.html ', modulus' 'Error of wave: from 0.000 to 1.000' 'class="scale half"'
# Two channels: the errors of each, and of both together (a truth of 0 divides by 1).
mkdir -p pairs && sed -E 's/"h1":([^,}]*)\}/"h1":\1,"l2_channels":[0.25,1.5],"h1_channels":[\1,null]}/g' \
    adam/metrics.jsonl >pairs/metrics.jsonl
floats 1 1 1 1 1 1 1 1 2 0 0 0 0 0 0 0 2 1 0 0 1 1 1 1 | samples pairs/samples.safetensors F32 3 1,2,2,2 32
run 0 adam pairs -o pairs.html
well_formed pairs.html
says pairs.html 'Test errors of each channel by itself' 'channel 2 of 2' \
    'Error of pairs: from 0.000 to 1.000, L² 0.5000' 'Error of pairs: from 1.000 to 1.000, L² 2.000' \
    'error of all 2 channels together: pairs 1.118.'
grep -F '<tr data-run="pairs" data-channel="2">' pairs.html |
    grep -qF '<td>2</td><td>1.500</td><td>–</td><td>1.500</td><td>–</td></tr>' || complain "$last: channel 2"
grep -F '<tr data-run="pairs" data-channel="1">' pairs.html |
    grep -qF '<td>1</td><td>0.2500</td><td>0.05000</td><td>0.2500</td><td>0.1000</td></tr>' || complain "$last: channel 1"
lacks report.html 'data-channel' 'data-test' 'data-seeds'
# Errors of samples one by one, and three seeds of one run.
for seed in 1 2 3; do
    mkdir -p "seed_$seed"
    sed -E "s/\\}\$/,\"quantiles\":{\"3\":[0.0$seed,0.125,0.25,null,0.5]}}/; s/(\"3\":\\{\"l2\":)[0-9.]+/\10.$seed/" \
        adam/metrics.jsonl >"seed_$seed/metrics.jsonl"
    printf 'opt: {name: adam}\ndistributed: {seed: %d}\n' $seed >"seed_$seed/config.yaml"
done
run 0 seed_1 seed_2 seed_3 -o seeds.html
well_formed seeds.html
says seeds.html 'L² errors of the test samples one by one' '<td>0.2000 ± 0.1</td>'
grep -F '<tr data-run="seed_2" data-test="3">' seeds.html |
    grep -qF '<td>0.02000</td><td>0.1250</td><td>0.2500</td><td>–</td><td>0.5000</td></tr>' || complain "$last: quantiles"
[ "$(grep -c 'data-seeds="3"' seeds.html)" -eq 1 ] || complain "$last: seeds"
sed -i 's/adam/sgd/' seed_3/config.yaml
run 0 seed_1 seed_2 seed_3 -o seeds.html
says seeds.html 'data-seeds="2"'
cp -r adam holes && floats 0 1 2 3 nan nan 1 2 nan 1 2 nan | samples holes/samples.safetensors F32 3 1,1,2,2 16
run 0 holes -o holes.html
well_formed holes.html
# Runs that were tested on different samples are shown apart.
run 0 adam tensorgrad wave -o apart.html
well_formed apart.html
[ "$(grep -c '<h4>Test sample 1' apart.html)" -eq 2 ] || complain "$last: different samples together"
cp -r adam wide && floats $(for i in {1..1200}; do echo $((i % 4)); done) |
    samples wide/samples.safetensors F32 400 1,1,400 1600
run 0 wide -o wide.html
well_formed wide.html

# ---- nothing in a file becomes markup ----

evil='<img src=x onerror=alert(1)>"'\''&'
mkdir -p "$evil" && metrics 2 50 >"$evil/metrics.jsonl"
cat >"$evil/config.yaml" <<'Y'
opt:
  "</code><script>alert(2)</script>": "\"><svg onload=alert(3)>"
data: {set: "</em><script>alert(4)</script>", train_resolution: "3\u0007\u0085"}
Y
cp adam/samples.safetensors "$evil"
run 0 "$evil" adam -o evil.html
well_formed evil.html
says evil.html '&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;' \
    '&lt;/code&gt;&lt;script&gt;alert(2)&lt;/script&gt;' '&quot;&gt;&lt;svg onload=alert(3)&gt;' \
    "tgrad report &#39;&lt;img src=x onerror=alert(1)&gt;&quot;&#39;\\&#39;&#39;&amp;&#39; adam"
run 0 "$evil" -o evil.html
well_formed evil.html
says evil.html 'on <em>&lt;/em&gt;&lt;script&gt;alert(4)&lt;/script&gt;</em>'
bad=$(printf 'bad\xff\x01name') && cp -r adam "$bad"
run 0 "$bad" -o utf8.html
well_formed utf8.html

# ---- runs that go on, were cut off, or went back ----

mkdir -p young && metrics 3 50 >young/metrics.jsonl && printf '{"epoch":4,"st' >>young/metrics.jsonl
run 0 young -o young.html
well_formed young.html
says young.html 'its last line was not complete' 'no config.yaml' 'no samples.safetensors'
curve young.html young train.loss '0.5,0.25,0.166666667'
config 1 >young/config.yaml
run 0 young -o young.html
says young.html 'not finished: 3 of 6 epochs' '<small>of 6</small>'
metrics 3 50 | tr -d '\n' | sed 's/}}{"e/}}\n{"e/g' >young/metrics.jsonl # no line end at the end
run 0 young -o young.html
curve young.html young train.loss '0.5,0.25,0.166666667'
{ metrics 4 80 && metrics 2 40; } >young/metrics.jsonl
run 0 young -o young.html
curve young.html young train.loss '0.4,0.2'
metrics 1 50 >young/metrics.jsonl
run 0 young adam -o young.html
well_formed young.html
sed 's/"loss":0.3/"loss":null/; s/"loss":0.2/"loss":0/; s/"skipped":0/"skipped":7,"loss_scale":512,"overflows":3/' adam/metrics.jsonl >young/metrics.jsonl
run 0 young -o young.html
well_formed young.html
curve young.html young train.loss '0.6,null,0,0.15,0.12,0.1'
says young.html 'skipped 7 updates' 'a part of 3 updates' 'ended at 512'
echo '{"epoch":1}' >young/metrics.jsonl
run 0 young -o young.html
well_formed young.html
lacks young.html 'id="time"' 'id="memory"'
sed 's/"peak":4194304/"peak":-1e300/; s/"optimizer":[0-9]*/"optimizer":1e300/; s/20,"seconds":0.25/1e300,"seconds":-1/' \
    adam/metrics.jsonl >young/metrics.jsonl
run 0 young -o young.html
well_formed young.html

# ---- folders that are not what they should be ----

# refused <text ..>: the last call failed with one sentence and left no page.
refused() {
    [ "$(wc -l <err)" -eq 1 ] || complain "$last: not one sentence"
    says err "$@"
    [ ! -e refused.html ] || complain "$last: left a page"
}

run 2
run 2 adam --samples -1
run 1 absent -o refused.html
refused 'absent/metrics.jsonl: No such file'
mkdir -p empty
run 1 empty -o refused.html
refused 'empty is left out: it is not a run folder' 'no metrics.jsonl'
run 1 adam/config.yaml -o refused.html
refused 'adam/config.yaml is left out: it is a file, not a run folder'
: >empty/metrics.jsonl
run 1 empty -o refused.html
refused 'no epoch of this run has ended'
# damaged <folder> <text>: beside others, such a run is named, and the page has the others.
damaged() {
    last="report with $1 beside a run"
    "$tgrad" report "$1" adam -o others.html --json >out 2>err && complain "$last: exit code 0"
    [ "$(wc -l <err)" -eq 1 ] || complain "$last: not one sentence"
    says err "$2"
    [ "$(grep -c '"name"' out)" -eq 1 ] || complain "$last: not one run"
    well_formed others.html
    says others.html '<h1>adam</h1>'
    rm -f others.html
}
damaged absent 'absent/metrics.jsonl: No such file'

# Beside runs, what is none is named and left out: runs/* holds more than runs.
mkdir -p nothing
last='report with folders that are no runs'
"$tgrad" report nothing adam empty adam/config.yaml tensorgrad -o left.html --json >out 2>err ||
    complain "$last: failed"
[ "$(wc -l <err)" -eq 3 ] || complain "$last: not three sentences"
says err 'tgrad: nothing is left out: it is not a run folder' 'empty/metrics.jsonl is left out' \
    'adam/config.yaml is left out'
[ "$(grep -c '"name"' out)" -eq 2 ] || complain "$last: not two runs"
well_formed left.html
says left.html '<h1>adam and tensorgrad</h1>'
run 1 nothing empty -o refused.html
[ "$(wc -l <err)" -eq 2 ] || complain "$last: not two sentences"
[ ! -e refused.html ] || complain "$last: left a page"
printf '{"epoch":1' >empty/metrics.jsonl
run 1 empty -o refused.html
refused 'no epoch of this run has ended'
for line in 'not json' '[1]' '{"epoch":"one"}' '{"epoch":2,"test":[]}' '{"epoch":2,"test":{"x":{}}}' \
    '{"epoch":2,"test":{"4":5}}' '{"epoch":99999999999999999999}' '{"epoch":2,"epoch":3}'; do
    { metrics 1 50 && echo "$line" && metrics 1 50; } >empty/metrics.jsonl
    run 1 empty -o refused.html
    refused 'empty/metrics.jsonl:2: this is not a line of metrics'
    damaged empty 'empty/metrics.jsonl:2: this is not a line of metrics'
done
metrics 1 50 >empty/metrics.jsonl
printf 'a: [1\n' >empty/config.yaml
run 1 empty -o refused.html
refused 'empty/config.yaml'
damaged empty 'empty/config.yaml'
rm empty/config.yaml && echo nonsense >empty/samples.safetensors
run 1 empty -o refused.html
refused 'empty/samples.safetensors'
damaged empty 'empty/samples.safetensors'
floats 0 1 2 3 0 1 2 3 0 1 2 3 | samples empty/samples.safetensors F32 3 1,4 16
run 1 empty -o refused.html
refused 'x_3, y_3 and pred_3 are not (samples, channels, grid..)'
damaged empty 'x_3, y_3 and pred_3 are not (samples, channels, grid..)'
{ header '{"y_3":{"dtype":"F32","shape":[1,1,2],"data_offsets":[0,8]}}' && floats 0 1; } >empty/samples.safetensors
run 1 empty -o refused.html
refused 'x_3, y_3 and pred_3'
{ header '{"y":{"dtype":"F32","shape":[1,1,2],"data_offsets":[0,8]}}' && floats 0 1; } >empty/rollout.safetensors
rm empty/samples.safetensors
damaged empty 'empty/rollout.safetensors: steps, y and pred are not those of the same frames'
run 1 adam -o absent/refused.html
says err 'cannot write absent/refused.html'
mkdir -p page.html
run 1 adam -o page.html
if [ -w /dev/full ]; then
    run 1 adam -o /dev/full
    says err 'cannot write /dev/full'
fi
damaged "" 'cannot read'
for leftover in *.tmp; do
    [ ! -e "$leftover" ] || complain "a temporary file is left: $leftover"
done

echo "$failures failures"
[ "$failures" -eq 0 ]
