#compdef tgrad
# zsh completion for tgrad. Put it as _tgrad into a folder of $fpath, or load it with:
#     source <(tgrad completion zsh)
_tgrad() {
    local -a commands keys options
    commands=(
@{zsh commands}    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    keys=(
@{zsh settings}    )
    case ${words[2]} in
@{zsh options}    esac
    case ${words[2]} in
    @{with settings}) options+=("${keys[@]}") ;;
    help) options+=('1:command:(@{commands} keys man)') ;;
    completion) options+=('1:shell:(bash zsh fish)') ;;
    esac
    (( ${options[(I)1:*]} )) || options+=('*:file:_files')
    shift words
    (( CURRENT-- ))
    _arguments -S "${options[@]}"
}
if [ "$funcstack[1]" = _tgrad ]; then
    _tgrad "$@"
else
    compdef _tgrad tgrad
fi
