# Run folders made by hand, for the tests of `tgrad report`. To be sourced.

# floats <number ..>: f32, little-endian; the numbers are whole, from -2 to 3.
floats() {
    local number
    for number in "$@"; do
        case $number in
        -2) printf '\x00\x00\x00\xc0' ;;
        -1) printf '\x00\x00\x80\xbf' ;;
        0) printf '\x00\x00\x00\x00' ;;
        1) printf '\x00\x00\x80\x3f' ;;
        2) printf '\x00\x00\x00\x40' ;;
        3) printf '\x00\x00\x40\x40' ;;
        nan) printf '\x00\x00\xc0\x7f' ;;
        esac
    done
}

# header <json>: length and text of a safetensors header.
header() {
    local i length=${#1}
    for ((i = 0; i < 8; i++)); do
        # shellcheck disable=SC2059 # the format is the byte
        printf "\\x$(printf %02x $((length >> (8 * i) & 255)))"
    done
    printf %s "$1"
}

# samples <file> <dtype> <resolution> <shape of one tensor> <bytes of one tensor> : x, y and pred
# from the standard input.
samples() {
    local dtype=$2 res=$3 shape=$4 size=$5
    {
        header '{"x_'"$res"'":{"dtype":"'"$dtype"'","shape":['"$shape"'],"data_offsets":[0,'$size']},
"y_'"$res"'":{"dtype":"'"$dtype"'","shape":['"$shape"'],"data_offsets":['$size,$((2 * size))']},
"pred_'"$res"'":{"dtype":"'"$dtype"'","shape":['"$shape"'],"data_offsets":['$((2 * size)),$((3 * size))']}}'
        cat
    } >"$1"
}

# metrics <epochs> <factor in percent>: lines as the trainer writes them; odd epochs have no test.
metrics() {
    awk -v epochs="$1" -v factor="$2" 'BEGIN { for (e = 1; e <= epochs; e++) {
        loss = factor / (100 * e)
        test = e % 2 ? "" : sprintf("\"3\":{\"l2\":%.9g,\"h1\":%.9g},\"6\":{\"l2\":%.9g,\"h1\":%.9g}",
            loss / 4, loss / 2, loss / 3, loss)
        printf "{\"epoch\":%d,\"step\":%d,\"lr\":0.005,\"train\":{\"loss\":%.9g},\"test\":{%s},", e,
            10 * e, loss, test
        printf "\"step_ms\":%.9g,\"seconds\":0.25,\"skipped\":0,\"memory\":{\"peak\":4194304,", 20
        printf "\"weights\":1048576,\"gradients\":1024,\"optimizer\":%d,\"factors\":4096,", 20480 * factor
        print "\"indices\":0,\"activations\":1048576,\"workspace\":0,\"data\":2048,\"communication\":0,\"other\":9}}"
    } }'
}

# config <rank>
config() {
    cat <<Y
fno: {n_modes: [6, 6], hidden_channels: 8}
opt:
  name: tensorgrad
  n_epochs: 6
  rank: $1
data: {set: darcy, train_resolution: 3, test_resolutions: [3, 6]}
Y
}

# make_run <folder> <factor in percent>: two samples of 3x3, with a prediction that is off by 1 in
# one place of nine.
make_run() {
    mkdir -p "$1"
    metrics 6 "$2" >"$1/metrics.jsonl"
    config "0.$2" >"$1/config.yaml"
    floats 0 1 2 1 2 3 2 3 3 1 1 1 1 1 1 1 1 1 \
        0 1 0 1 2 1 0 1 0 2 1 0 2 1 0 2 1 0 \
        0 1 0 1 3 1 0 1 0 2 1 0 2 1 0 2 1 -1 | samples "$1/samples.safetensors" F32 3 2,1,3,3 72
}
