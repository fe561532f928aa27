# What tests of a command share: a folder of their own to work in, and checks of a call and of what it
# wrote. Sourced with $1 = tgrad; sets `tgrad`, `work` and `failures`, and goes to `work`.
# shellcheck shell=bash
set -uo pipefail
tgrad=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

complain() {
    failures=$((failures + 1))
    echo "FAILED: $*" >&2
    [ ! -s err ] || sed 's/^/    stderr: /' err >&2
}

# exits <exit code> <arguments of tgrad ..>: stdout in `out`, stderr in `err`.
exits() {
    local expected=$1 code
    shift
    last="$*" && last=${last:0:200}
    "$tgrad" "$@" >out 2>err </dev/null
    code=$?
    [ $code -eq "$expected" ] || complain "$last: exit code $code, expected $expected"
}

# expect: the same; a failure prints nothing on stdout, a success nothing on stderr.
expect() {
    exits "$@"
    if [ "$1" -eq 0 ]; then
        [ ! -s err ] || complain "$last: wrote to stderr"
    else
        [ ! -s out ] || complain "$last: failed, but wrote to stdout"
        [ -s err ] || complain "$last: failed without a word"
    fi
}

# waits_for <pid> <command ..>: until the command succeeds; a failure if that process ends before. Signals are sent
# after such a wait, not after a time: a machine may be slow.
waits_for() {
    local pid=$1
    shift
    until "$@" 2>/dev/null; do
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.02
    done
}

# has_lines <file> <count>: that many or more.
has_lines() {
    [ "$(wc -l <"$1")" -ge "$2" ]
}

# stops <pid>: until it has stopped, so that nothing changes by its own hand.
stops() {
    kill -STOP "$1"
    waits_for "$1" grep -q '^State:.*stopped' "/proc/$1/status"
}

# backends: names of those that can be used here.
backends() {
    "$tgrad" info | awk '/^backend [a-z]+:/ { name = $2 }
        /^  available  yes/ { print substr(name, 1, length(name) - 1) }'
}

# says <file> <fixed text ..>
says() {
    local file=$1 text
    shift
    for text in "$@"; do
        grep -qF -- "$text" "$file" || complain "$last: no '${text:0:200}' in $file"
    done
}

# The newest checkpoint of a run, and whether those of two runs have the same arrays, whatever their
# settings.
newest() {
    find "$1/checkpoints" -name 'step-*' | sort | tail -1
}
arrays_of() { # arrays_of <checkpoint>
    tail -c +$((9 + $(od -An -tu8 -N8 "$1"))) "$1"
}
same_arrays() { # same_arrays <run> <run>
    cmp -s <(arrays_of "$(newest "$1")") <(arrays_of "$(newest "$2")") || complain "$1 and $2: other bits"
}
