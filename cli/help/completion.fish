# fish completion for tgrad. Load it with: tgrad completion fish | source
complete -c tgrad -n __fish_use_subcommand -f -l help -d 'Show the commands'
complete -c tgrad -n __fish_use_subcommand -f -l version -d 'Show the version'
@{fish commands}@{fish options}complete -c tgrad -n '__fish_seen_subcommand_from help' -f -a '@{commands} keys man'
complete -c tgrad -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'
