# bash completion for tgrad. Load it with: source <(tgrad completion bash)
_tgrad() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local command=${COMP_WORDS[1]} options keys sections commands='@{commands}'
    COMPREPLY=()
    # The shell hands over --name=value as three words.
    if [ "$current" = '=' ]; then
        current=
    elif [ "$before" = '=' ]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "$commands --help --version" -- "$current"))
        return
    fi
    case "$command $before" in
@{bash values}    'help keys')
        COMPREPLY=($(compgen -W 'fno opt data distributed' -- "$current"))
        return ;;
    esac
    case $command in
@{bash options}    esac
    case $command in
    @{with settings})
        sections='--fno. --opt. --data. --distributed.'
        keys='@{bash settings}' ;;
    esac
    case $current in
    --*.*) COMPREPLY=($(compgen -W "$keys" -- "$current")) ;;
    -*)
        COMPREPLY=($(compgen -W "$options $sections" -- "$current"))
        case ${COMPREPLY[*]} in *.) compopt -o nospace 2>/dev/null ;; esac ;;
    *) [ "$command" != help ] || COMPREPLY=($(compgen -W "$commands keys man" -- "$current")) ;;
    esac
}
complete -o default -F _tgrad tgrad
