"""`grbm completion`: a script for a shell, with all words in it, so that completing starts no Python."""

from grbm.cli.common import flags_of, function_of
from grbm.cli.names import COMMANDS, close
from grbm.cli.options import TrainOptions
from grbm.cli.training import ALIASES, HELP_ALL
from grbm.core.errors import UserError
from grbm.reproduce.targets import TARGETS, PaperOptions
from grbm.runs.presets import PRESETS

SHELLS = ("bash", "zsh", "fish")
HOW = """\
usage: grbm completion SHELL

  bash   eval "$(grbm completion bash)"      in ~/.bashrc
  zsh    eval "$(grbm completion zsh)"       in ~/.zshrc, after compinit
  fish   grbm completion fish | source       in ~/.config/fish/config.fish"""


def completion(args: list[str]) -> None:
    """`grbm completion`: print the script."""
    if not args or args[0] in ("-h", "--help"):
        print(HOW)
        return
    if args[0] not in SHELLS:
        raise UserError(
            f"There is no shell {args[0]!r} here{close(args[0], SHELLS)} Choose one of {', '.join(SHELLS)}."
        )
    print(_fish() if args[0] == "fish" else _bash(zsh=args[0] == "zsh"))


def words() -> dict[str, tuple[list[str], list[str]]]:
    """By command: the names that may follow it, and its options."""
    names = {"train": list(PRESETS), "reproduce": ["all", "fig1", *TARGETS], "completion": list(SHELLS)}
    kinds = {"train": TrainOptions, "reproduce": PaperOptions}  # they read a word before their options
    more = {"train": [*ALIASES, HELP_ALL, "--config", "--dynamics", "--scale"]}
    found = {}
    for command in COMMANDS:
        kind = kinds.get(command, function_of(command)[1])
        flags = () if kind == list[str] else flags_of(kind)
        found[command] = names.get(command, []), [*flags, "--help", *more.get(command, [])]
    return found


def _bash(*, zsh: bool) -> str:
    """For bash, and for zsh by its own emulation of it."""
    cases = "\n".join(
        f'    {command}) names="{" ".join(names)}"; flags="{" ".join(flags)}" ;;'
        for command, (names, flags) in words().items()
    )
    head = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_grbm() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} names="" flags=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(words())} --help --version" -- "$word")); return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *) if [ "$COMP_CWORD" -eq 2 ] && [ "${{COMP_WORDS[1]}}" = train ]; then
         COMPREPLY=($(compgen -W "$names" -- "$word") $(compgen -f -- "$word"))
       elif [ "$COMP_CWORD" -eq 2 ] && [ -n "$names" ]; then COMPREPLY=($(compgen -W "$names" -- "$word"))
       else COMPREPLY=($(compgen -f -- "$word")); fi ;;
  esac
}}
complete -o filenames -F _grbm grbm"""


def _fish() -> str:
    lines = ["complete -c grbm -n __fish_use_subcommand -f -a '" + " ".join(words()) + "'"]
    for command, (names, flags) in words().items():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        if names:
            only = "" if command == "train" else "-f "  # which takes files too
            lines.append(f"complete -c grbm {seen} {only}-a '{' '.join(names)}'")
        lines += [f"complete -c grbm {seen} -l {flag.removeprefix('--')}" for flag in flags]
    return "\n".join(lines)
