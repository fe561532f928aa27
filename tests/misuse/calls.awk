# Writes a C table of wrong calls of every public function, from the headers themselves:
#
#   awk -f calls.awk values.txt include/tgrad/*.h >calls.inc
#
# Each pointer argument is NULL in turn, each struct all zero, each tensor on a device that the backend
# does not compute on and of a dtype and shape that nothing takes, each signed number and enum out of
# range; all others get the good value that values.txt has for them. A function with an argument that has none ends the build.

function strip(text) {
    gsub(/[ \t\n]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    return text
}

# The good value of an argument: by function and name, by type and name, or by type.
function good(f, type, name, plain) {
    plain = type
    sub(/^const /, "", plain)
    if ((f "." name) in value) return value[f "." name]
    if ((type " " name) in value) return value[type " " name]
    if ((plain " " name) in value) return value[plain " " name]
    if (plain in value) return value[plain]
    if (type ~ /\*\*$/ && name == "out") return "(void *)&made"
    if (type ~ /\*\*$/) return "&" good(f, substr(type, 1, length(type) - 1), name)
    if (type ~ /^tg_[a-z0-9_]+ \*$/) return "world.buffer"
    if (type ~ /^tg_[a-z0-9_]+$/) return "0"
    printf "calls.awk: %s: no good value for '%s %s' in values.txt\n", f, type, name >"/dev/stderr"
    failed = 1
    return "0"
}

function is_pointer(type) {
    return type ~ /\*$/ || type ~ /_fn$/
}

function is_number(type) {
    return type == "int" || type == "int64_t" || (type ~ /^tg_/ && !is_pointer(type))
}

# One wrong call: argument `bad` of function f is `wrong`.
function emit(f, result, bad, wrong, i, list, expected) {
    for (i = 1; i <= count; i++) {
        list = list (i > 1 ? ", " : "") (i == bad ? wrong : good(f, types[i], names[i]))
    }
    printf "static tg_status call_%d(void) {\n", rows
    makes = list ~ /&made/
    if (makes) print "    void *made = &world;"
    if (result == "tg_status") {
        printf "    tg_status status = %s(%s);\n", f, list
        if (makes) print "    expect_nothing_made(status, made);"
        print "    return status;\n}"
    } else {
        printf "    %s(%s)%s;\n    return TG_E_ARGUMENT;\n}\n",
            result == "const char *" ? "read_text(" f : "(void)" f, list,
            result == "const char *" ? ")" : ""
    }
    expected = "MAY_PASS"
    if (result == "tg_status" && wrong == "NULL" && !((f "." names[bad]) in optional)) {
        expected = bad == 1 || f == "tg_context_create" ? "REFUSED" : "REFUSED_WITH_SENTENCE"
    }
    if (result == "tg_status" && wrong ~ /^&world\.(elsewhere|odd)$/) expected = "FAILS"
    table = table sprintf("    {\"%s\", \"%s\", \"%s\", %s, call_%d},\n", f, names[bad], wrong, expected,
        rows++)
}

function declare(text, result, f, arguments, part, i, n) {
    gsub(/TG_API|TG_NODISCARD/, "", text)
    text = strip(text)
    match(text, /tg_[a-z0-9_]+\(/)
    f = substr(text, RSTART, RLENGTH - 1)
    result = strip(substr(text, 1, RSTART - 1))
    arguments = substr(text, RSTART + RLENGTH)
    sub(/\)[^)]*$/, "", arguments)
    functions = functions sprintf("    \"%s\",\n", f)
    count = arguments == "void" ? 0 : split(arguments, part, ",")
    for (i = 1; i <= count; i++) {
        part[i] = strip(part[i])
        if (sub(/\[.*\]$/, "", part[i])) sub(/ /, " *", part[i])
        match(part[i], /[a-z_0-9]+$/)
        names[i] = substr(part[i], RSTART)
        types[i] = strip(substr(part[i], 1, RSTART - 1))
    }
    n = count
    for (i = 1; i <= n; i++) {
        if (is_pointer(types[i])) emit(f, result, i, "NULL")
        if (types[i] ~ /\*\*$/ && names[i] != "out") emit(f, result, i, "&(" \
            substr(types[i], 1, length(types[i]) - 1) "){NULL}")
        plain = types[i]
        sub(/^const /, "", plain)
        if (good(f, types[i], names[i]) ~ /^&(world|\()/ && \
            plain ~ /^tg_[a-z0-9_]+ \*$/ && names[i] !~ /^(out|result)$/) {
            emit(f, result, i, "&(" substr(plain, 1, length(plain) - 2) "){0}")
        }
        if (types[i] == "const tg_tensor *" || (types[i] == "tg_tensor *" && names[i] !~ /^(out|tensor)$/)) {
            if (!(f in anywhere)) emit(f, result, i, "&world.elsewhere")
            if (!(f in anykind)) emit(f, result, i, "&world.odd")
        }
        if (is_number(types[i])) {
            emit(f, result, i, "-1")
            if (types[i] ~ /^tg_/ || names[i] ~ /^(index|param|group|branch|pde|channel)$/) {
                emit(f, result, i, "100000")
            }
        }
    }
}

FNR == 1 { file++; statement = "" }

# values.txt
file == 1 {
    if (/^#/ || /^$/) next
    if ($1 == "optional") { optional[$2] = 1; next }
    if ($1 == "anywhere") { anywhere[$2] = 1; next }
    if ($1 == "anykind") { anykind[$2] = 1; next }
    at = index($0, " = ")
    value[strip(substr($0, 1, at - 1))] = strip(substr($0, at + 3))
    next
}

# The headers: statements that begin with TG_API, without comments.
{
    line = $0
    gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)
    if (in_comment) {
        if (!sub(/^.*\*\//, "", line)) next
        in_comment = 0
    }
    if (sub(/\/\*.*$/, "", line)) in_comment = 1
    if (line ~ /^TG_API/) statement = " "
    if (statement != "") statement = statement " " line
    if (statement != "" && line ~ /;[ \t]*$/) {
        declare(statement)
        statement = ""
    }
}

END {
    if (failed) exit 1
    printf "static const wrong_call wrong_calls[] = {\n%s};\n", table
    printf "static const char *const functions[] = {\n%s};\n", functions
}
