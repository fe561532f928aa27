# Numbers out of JSON, for tests of a command. To be sourced after checks.sh.
# shellcheck shell=bash

# flat <file>: every number, word and text of a JSON value on a line of its own, after its path:
# .results.0.l2_channels.2 0.0125
flat() {
    awk '
    function next_token() {
        if (!match(text, /^[ \t\n]*("([^"\\]|\\.)*"|[^][ \t\n{}:,]+|[][{}:,])/)) { return "" }
        token = substr(text, RSTART, RLENGTH)
        text = substr(text, RLENGTH + 1)
        sub(/^[ \t\n]+/, "", token)
        return token
    }
    function bare(word) { return word ~ /^"/ ? substr(word, 2, length(word) - 2) : word }
    function value(place,    at, key, got) { # what is left of text
        got = next_token()
        if (got == "{") {
            while ((got = next_token()) != "}" && got != "") {
                if (got == ",") { got = next_token() }
                key = bare(got)
                next_token() # the colon
                value(place "." key)
            }
        } else if (got == "[") {
            for (at = 0; text !~ /^[ \t\n]*]/ && text != ""; at++) {
                value(place "." at)
                if (text ~ /^[ \t\n]*,/) { next_token() }
            }
            next_token()
        } else { print place, bare(got) }
    }
    { text = text $0 "\n" }
    END { value("") }' "$1"
}

# at <file of flat lines> <place>: the value there.
at() {
    awk -v place="$2" '$1 == place { print $2; found = 1 } END { exit !found }' "$1" ||
        complain "no $2 in $1"
}

# near <a> <b> [tolerance]: two numbers, equal to six digits unless told otherwise.
near() {
    awk -v a="$1" -v b="$2" -v most="${3:-1e-6}" 'BEGIN { d = a - b; d = d < 0 ? -d : d
        size = b < 0 ? -b : b
        exit !(a ~ /^[-+]?[0-9.]/ && b ~ /^[-+]?[0-9.]/ && d <= most * size) }' ||
        complain "$last: $1 is not $2${4:+ ($4)}"
}
