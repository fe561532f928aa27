#!/usr/bin/env bash
# Drives tgrad from outside: exit codes, what goes to which stream, help, suggestions, hostile
# arguments, and the file commands on inputs made here byte by byte.
#
#   tests/cli/test_cli.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
# shellcheck source=../support/checks.sh
source "$source_tree/tests/support/checks.sh"

run() { # run <exit code> <arguments ..>
    expect "$@"
}

# One sentence, "tgrad: ..", for exit code 1.
one_sentence() {
    if [ "$(wc -l <err)" -ne 1 ] || ! grep -q '^tgrad: ' err; then
        complain "$last: not one 'tgrad: ..' line"
    fi
}

valid_json() {
    if command -v python3 >/dev/null; then
        python3 -m json.tool --json-lines <(tr '\n' ' ' <out) >/dev/null 2>&1 ||
            complain "$last: stdout is not one JSON object"
    fi
}

same_bytes() {
    cmp -s "$1" "$2" || complain "$last: $1 and $2 differ"
}

# ---- inputs ----

# little <bytes> <number>: the number as little-endian bytes.
little() {
    local i number=$2
    for ((i = 0; i < $1; i++)); do
        # shellcheck disable=SC2059 # the format is the byte
        printf "\\x$(printf %02x $((number & 255)))"
        number=$((number >> 8))
    done
}

# npy <descr> <shape>: an npy header as numpy writes it; the numbers follow from elsewhere.
npy() {
    local header="{'descr': '$1', 'fortran_order': False, 'shape': $2, }"
    printf '\x93NUMPY\x01\x00'
    little 2 118
    printf '%-117s\n' "$header"
}

# safetensors <json>
safetensors() {
    little 8 ${#1}
    printf %s "$1"
}

one='\x00\x00\x80\x3f' two='\x00\x00\x00\x40' nan='\x00\x00\xc0\x7f' inf='\x00\x00\x80\x7f'
minus='\x00\x00\x80\xbf' zero='\x00\x00\x00\x00'

{ npy '<f4' '(2, 3)' && printf %b "$one$two$zero$minus$two$two"; } >plain.npy
{ npy '<f4' '(4,)' && printf %b "$one$nan$inf$inf"; } >broken.npy
{ npy '<f4' '(2,)' && printf %b "$nan$inf"; } >hopeless.npy
{ npy '<f4' '(0, 5)'; } >empty.npy
long=$(printf 'word %.0s' {1..200})
{
    safetensors '{"__metadata__":{"note":"'"$long"'","esc\u001b[31m":"a\nb"},
"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},
"weight":{"dtype":"C64","shape":[1,2],"data_offsets":[12,28]},
"count":{"dtype":"I32","shape":[],"data_offsets":[28,32]}}'
    printf %b "$one$two$minus$one$zero$zero$two"
    little 4 42
} >several.safetensors

# ---- help, version, usage ----

run 0 --version
grep -qxE 'tgrad [0-9]+\.[0-9]+\.[0-9]+' out || complain "--version: $(cat out)"
run 0 -V
run 0 --help
cp out overview
says out 'Usage: tgrad COMMAND' info inspect convert completion
run 0 -h
run 0 help
same_bytes out overview
commands=$(sed -n '/^Commands:/,$s/^  \([a-z]*\) .*/\1/p' overview)
[ -n "$commands" ] || complain "--help lists no commands"
for command in $commands; do
    run 0 "$command" --help
    says out "Usage: tgrad $command" 'Options:' '--help' 'Examples:' "  tgrad $command"
    cp out page
    run 0 "$command" -h
    same_bytes out page
    run 0 help "$command"
    same_bytes out page
    awk 'length > 100 { exit 1 }' page || complain "$command --help: a line has over 100 columns"
    grep -oE '^ +(-.,)? +--[a-z-]+' page | sed "s/.*--/$command --/" >>options
done

# The man page has every command with every option, in order, and is the page that is installed.
run 0 help man
cp out man_page
awk '/^\.SS / { command = $2 } command && /^\.B .*\\-\\-[a-z]/ { gsub(/\\/, ""); sub(/.*--/, ""); print command, "--" $1 }' \
    man_page >found
diff options found >&2 || complain "the man page has other options than the commands"
says man_page '.SH NAME' '.SH EXIT STATUS' 'tgrad convert darcy.h5 \-\-dataset y y.npy'
if command -v groff >/dev/null; then
    groff -man -ww -z -Tutf8 man_page 2>err
    [ ! -s err ] || complain "groff has something to say about the man page"
fi

run 2
says err 'Usage: tgrad COMMAND'
run 2 ''
says err "unknown command ''"
run 2 inspct
says err "unknown command 'inspct'; did you mean inspect?" "Try 'tgrad --help'"
run 2 frobnicate
run 2 help inspct
says err 'did you mean inspect?'
run 2 --vresion
says err 'did you mean --version?'
run 2 --json info
run 2 -x
run 2 "$(printf 'x%.0s' {1..100000})"
run 2 inspect
says err 'tgrad inspect: needs FILE' "Try 'tgrad inspect --help'"
run 2 inspect plain.npy another.npy
says err "unexpected argument 'another.npy'"
run 2 convert plain.npy
says err 'needs IN OUT'
run 2 inspect plain.npy --jsno
says err "unknown option '--jsno'; did you mean --json?"
run 2 inspect plain.npy --opt.rank 3
says err "unknown option '--opt.rank'"
run 2 inspect --tensor
says err '--tensor needs a value'
run 2 inspect --tensor --json plain.npy
says err '--tensor needs a value, but --json follows'
run 2 inspect --json=yes plain.npy
says err 'takes no value'
run 2 info --threads 99999999999999999999
says err '--threads must be from 0 to 4096'
run 2 info --threads -1
run 2 info --threads ''
says err "--threads needs an integer, not ''"
run 2 info -t
run 2 info --threads=two
run 2 info --backend cud
says err "'cud' is not one of ref, cpu, cuda; did you mean"
run 2 info --math half
says err "--math: 'half' is not one of tf32, fp32"
run 2 info --backend ''
run 2 info extra
run 2 convert plain.npy x.h5 --gzip 10
run 2 convert plain.npy x.h5 --dtype f33
says err 'did you mean f32?'
run 2 convert plain.npy x.safetensors --gzip 3
says err '--gzip is for HDF5 output'
run 2 completion
run 2 completion tcsh
says err 'is not bash, zsh or fish'

# ---- info ----

run 0 info
says out 'tgrad ' 'backend ref' 'threads' 'libraries' 'HDF5' 'gpu'
run 0 info --json
valid_json
says out '"version"' '"compiler"' '"name": "ref"' '"overrides"' '"features"' '"gpu"' '"libraries"'
run 0 info --json --backend=ref -t3
valid_json
says out '"backend": "ref"' '"threads": 3'

# ---- inspect ----

run 0 inspect plain.npy
says out 'npy, 1 tensor' f32 2x3
grep -qE '^data +f32 +2x3 +-1 +2 +1 +0 +0$' out || complain "$last: $(cat out)"
run 0 inspect --json -- plain.npy
valid_json
says out '"format": "npy"' '"elements": 6' '"bytes": 24' '"min": -1.0' '"max": 2.0' '"mean": 1.0'
run 0 inspect broken.npy --json
valid_json
says out '"nan": 1' '"inf": 2' '"min": 1.0'
run 0 inspect hopeless.npy --json
valid_json
says out '"min": null' '"max": null' '"mean": null'
run 0 inspect hopeless.npy
grep -qE '^data +f32 +2 +- +- +- +1 +1$' out || complain "$last: $(cat out)"
run 0 inspect empty.npy
says out 0x5
run 0 inspect several.safetensors
says out '3 tensors' 'c64' '1x2' 'scalar' 'metadata' 'word word' '(1000 bytes)' 'a\nb' 'esc\x1b[31m'
if grep -q $'\x1b' out; then complain "$last: a control character reached the terminal"; fi
grep -qE '^weight +c64 +1x2 +1 +2 +1.5 +0 +0$' out || complain "$last: $(cat out)"
run 0 inspect several.safetensors --json
valid_json
says out "$long" '"name": "count"' '"shape": []'
run 0 inspect several.safetensors --tensor x --json
valid_json
if grep -q '"name": "count"' out; then complain "$last: shows another tensor too"; fi
run 1 inspect several.safetensors --tensor wieght
one_sentence
says err "no tensor 'wieght'; did you mean 'weight'?"
run 1 inspect several.safetensors --tensor ''
says err 'it has' weight count
one_sentence
for missing in absent.npy '' "$work" /dev/null "$(printf 'p%.0s' {1..5000})"; do
    run 1 inspect "$missing"
    one_sentence
    run 1 inspect "$missing" --json
    one_sentence
done
head -c 100 plain.npy >cut.npy
run 1 inspect cut.npy
one_sentence
echo 'some text that is no tensor' >text.npy
run 1 inspect text.npy
one_sentence

# Files of other programs, and one with a wrong ending.
for file in "$source_tree"/tests/fixtures/*.npy "$source_tree"/tests/fixtures/*.safetensors \
    "$source_tree/tests/fixtures/h5py.h5"; do
    code=0 # arrays x and y that are no pairs, and datasets of no known layout, cannot be trained on
    [[ $file == */gno_* || $file == *.h5 ]] && code=1
    exits $code inspect "$file"
    exits $code inspect "$file" --json
    valid_json
done
run 0 inspect "$source_tree/tests/fixtures/fno_1d_complex.safetensors"
says out c64 'fno_blocks.convs.0.weight.tensor' 'config: {'
run 0 inspect "$source_tree/tests/fixtures/h5py.h5" --tensor group/zip
grep -qE '^group/zip +f32 +2x3x4 +0 +23 +11.5 +0 +0$' out || complain "$last: $(cat out)"
run 1 inspect "$source_tree/tests/fixtures/hostile.h5"
one_sentence
for dataset in bad_bool external huge overflow rank9 virtual; do
    run 1 inspect "$source_tree/tests/fixtures/hostile.h5" --tensor "$dataset"
    one_sentence
done

# ---- convert ----

run 0 convert plain.npy plain.safetensors
says out 'wrote plain.safetensors: 1 tensor'
run 0 convert plain.safetensors plain.h5 --json
valid_json
says out '"format": "HDF5"' '"name": "data"'
run 0 convert plain.h5 --dataset data back.npy
same_bytes plain.npy back.npy
run 0 convert --dataset=data plain.h5 -- back2.npy
same_bytes plain.npy back2.npy
run 0 convert plain.npy copy.npy
same_bytes plain.npy copy.npy
cp plain.npy self.npy
run 0 convert self.npy self.npy
same_bytes plain.npy self.npy

run 0 convert several.safetensors several.h5 --gzip 6
exits 1 inspect several.h5 --json
valid_json
says out "$long" '"name": "weight"' '"dtype": "c64"' '"dtype": "i32"' '"nan": 0'
exits 1 inspect several.h5
grep -qE '^weight +c64 +1x2 +1 +2 +1.5 +0 +0$' out || complain "$last: $(cat out)"
grep -qE '^count +i32 +scalar +42 +42 +42 +0 +0$' out || complain "$last: $(cat out)"
run 0 convert several.h5 again.safetensors
says out '3 tensors'
run 0 inspect again.safetensors --json
says out "$long" '"dtype": "c64"'
run 0 convert broken.npy broken.h5
run 0 inspect broken.h5 --json
valid_json
says out '"nan": 1' '"inf": 2' '"min": 1.0'
run 0 convert empty.npy empty.h5
run 0 inspect empty.h5
says out 0x5
run 0 convert plain.npy half.safetensors --dtype bf16
run 0 inspect half.safetensors
says out bf16
run 0 convert half.safetensors full.npy --dtype f32
same_bytes plain.npy full.npy

# Every dtype goes through HDF5 (and its statistics through a conversion to double) and comes back.
for dtype in f32 f64 bf16 f16 c64 c128 cbf16 cf16 bool u8 i8 u16 i16 u32 i32 u64 i64; do
    run 0 convert plain.npy "$dtype.h5" --dtype "$dtype"
    run 0 inspect "$dtype.h5"
    grep -qE "^data +$dtype +2x3 +(-1|0) +[12] +[0-9.]+ +0 +0$" out || complain "$last: $(cat out)"
    case $dtype in
    *f* | c* | i*)
        run 0 convert "$dtype.h5" full.npy --dtype f32
        same_bytes plain.npy full.npy
        ;;
    esac
done
# More elements than are in memory at once: the last of three rows has the only other value.
{ npy '|u1' '(3, 3000000)' && head -c 8999999 /dev/zero && printf '\x09'; } >large.npy
run 0 convert large.npy large.h5 --gzip 1
run 0 inspect large.h5
grep -qE '^data +u8 +3x3000000 +0 +9 +1e-06 +0 +0$' out || complain "$last: $(cat out)"

run 1 convert several.safetensors several.npy
one_sentence
says err 'holds one tensor' 'weight' 'count' '--dataset'
[ ! -e several.npy ] || complain "$last: left a file"
run 1 convert several.safetensors x.npy --dataset y
one_sentence
run 0 convert several.safetensors weight.npy --dataset weight
run 1 convert weight.npy real.npy --dtype f32
run 0 convert weight.npy wide.h5 --dtype c128
run 1 convert plain.npy plain.txt
one_sentence
run 1 convert plain.npy ''
run 1 convert plain.npy no-such-folder/x.npy
one_sentence
run 1 convert absent.npy x.npy
one_sentence
run 1 convert plain.npy "$work"
for leftover in *.tmp* .[!.]*; do
    [ ! -e "$leftover" ] || complain "a temporary file is left: $leftover"
done

# ---- streams that do not work ----

# not_written <exit code> <what>: the last call must have failed and said why.
not_written() {
    last=$2
    [ "$1" -eq 1 ] || complain "$last: exit code $1, expected 1"
    says err 'cannot write to standard output'
}
for arguments in --version --help 'info' 'info --json' 'inspect plain.npy' 'completion bash' \
    'convert plain.npy full.npy'; do
    # shellcheck disable=SC2086 # several words
    "$tgrad" $arguments >&- 2>err
    not_written $? "tgrad $arguments >&-"
    if [ -w /dev/full ]; then
        # shellcheck disable=SC2086
        "$tgrad" $arguments >/dev/full 2>err
        not_written $? "tgrad $arguments >/dev/full"
    fi
done
# With stdout closed, a file opened next must not take its place.
same_bytes plain.npy full.npy
"$tgrad" inspect absent.npy >out 2>&-
[ $? -eq 1 ] || complain "stderr closed: exit code is not 1"

# ---- completion ----

run 0 completion bash
cp out completion
# complete <words ..>: what the script offers for the last word.
complete_words() {
    bash --norc -c 'source ./completion; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tgrad
        echo "${COMPREPLY[*]}"' bash "$@"
}
offers() {
    local expected=$1 found
    shift
    found=$(complete_words "$@")
    [ "$found" = "$expected" ] || complain "completion of '$*': '$found', expected '$expected'"
}
offers 'info inspect init' tgrad in
offers '--version' tgrad --v
offers '--tensor' tgrad inspect --t
offers '--json' tgrad inspect file.npy --j
offers 'cpu cuda' tgrad info --backend c
offers 'cpu cuda' tgrad info --backend = c
offers 'ref cpu cuda' tgrad info --backend =
offers 'inspect' tgrad help ins
offers '' tgrad inspect pla
offers '' tgrad convert --dataset --j
offers 'keys' tgrad help key
offers 'opt' tgrad help keys o
offers '--fno.' tgrad train c.yaml --fn
offers '--fno.n_modes --fno.n_layers --fno.norm --fno.non_linearity' tgrad plan --fno.n
offers 'low_rank' tgrad train --opt.proj_type low
offers 'true' tgrad plan --opt.proj_gap x --data.shuffle = t
offers '' tgrad inspect --fno.n

# The other shells are not installed everywhere: every command, option and key is in their scripts.
run 0 completion zsh
says out '#compdef tgrad' "'*--fno.norm=[normalization inside a block]:VALUE:(group_norm instance_norm null)'" \
    "'train:Train an operator'" '_arguments -S'
run 0 completion fish
says out "-n '__fish_seen_subcommand_from train sweep plan" "-l fno.norm -x -a 'group_norm instance_norm null'" \
    '-f -a train -d' "-l backend -x -a 'ref cpu cuda'"
for script in zsh fish; do
    "$tgrad" completion $script >script
    tr -d '\n' <script | sed "s/'\\\\''//g; s/\\\\.//g; s/[^']//g" >quotes
    [ $(($(wc -c <quotes) % 2)) -eq 0 ] || complain "$script: quotes do not match"
done

[ "$failures" -eq 0 ]
