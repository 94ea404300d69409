"""Shell lines in a text: after a prompt, in a block of code, or in backticks."""

import re
from typing import Final

from everlong.compaction.refs import word_set

_COMMANDS: Final = word_set(
    "ansible ansible-playbook apt apt-get aws awk az bash bazel brew bun bundle cargo cat cd"
    " celery chmod chown cmake cp crontab cqlsh curl cut dbt deno df dig django-admin dmesg"
    " docker docker-compose dotnet du echo env eslint etcdctl everlong export ffmpeg find"
    " flask free gcc gcloud gem gh git go gradle grep gsutil gunzip gzip head helm htop"
    " iostat ip ipconfig iptables java jest jq journalctl jupyter kafka-topics kill kinit"
    " kubectl ldapsearch less ln ls lsof make md5sum mkdir mongo mongodump mongosh mount mv"
    " mvn mypy mysql mysqldump nc netstat nginx node nohup npm npx nslookup openssl pg_dump"
    " pg_restore pip ping pipx pm2 pnpm podman poetry prettier ps psql pulumi pwsh pytest"
    " python python3 rabbitmqctl rails rake rclone redis-cli rg rm rsync ruff ruby rustc"
    " rustup scp sed service sh shred snowsql spark-submit sqlite3 ss ssh stat strace stripe"
    " sudo svn systemctl tail tar tcpdump tee telnet temporal terraform tmux top touch"
    " traceroute tsc ulimit uname unzip uv uvicorn vault vim virtualenv vmstat watch wget"
    " whoami xargs yarn yq yum zip zstd"
)
_LINE_CHARS_MAX: Final = 2000
_COMMAND_CHARS_MAX: Final = 300
_LETTER: Final = re.compile(r"[A-Za-z\x80-\U0010ffff]")
_CODE: Final = re.compile(r"(?<!`)`([^`\n]{3,300})`(?!`)")
_SHELLS: Final = frozenset(["", "sh", "bash", "shell", "console", "zsh", "powershell", "text"])
# A sign alone may stand for something else; after a user and a host it is a prompt.
_PROMPT: Final = re.compile(
    # Runs of one kind of character follow each other at most twice, so a line takes linear time.
    r"(?a)\s*+(?:\(\w[\w.-]{0,40}\)\s?)?"
    r"(?:(?P<host>\[?[\w.-]{1,64}@[\w.-]{1,64}[^$#%>\n]{0,80}|PS [A-Z]:\\[^>\n]{0,80})"
    r"|[\w./~:-]{0,40}\s?)(?P<sign>\$|#|%|\u276f|\u279c|>)\s+(?P<command>\S.*)"
)
_SIGN: Final = re.compile("[$#%>\u276f\u279c]")
_TOLD: Final = re.compile(
    r"(?ai)\s*(?:\[[^\]\n]{0,40}\]\s*)?(?:\+|run|ran|running|exec|executing|executed|command|cmd|invoking)"
    r"(?: command| step)?(?:\s*[:=>$]\s*|\s+)(\S.*)"
)


def find_commands(text: str, *, bulk: bool) -> list[str]:
    """Return the shell lines of a text: after a prompt, in a block of code, or in backticks."""
    found: dict[str, None] = {}
    if not bulk and "`" in text:
        for code in _CODE.findall(text):
            if _is_command(code, known=" " not in code.strip()):
                found[code.strip()] = None
    shell = False
    for line in text.splitlines():
        if not line or len(line) > _LINE_CHARS_MAX:
            continue
        if line.lstrip().startswith("```"):
            shell = not shell and line.strip().strip("`").lower() in _SHELLS
        elif command := _command_of(line, shell):
            found[command] = None
    return list(found)


def _command_of(line: str, shell: bool) -> str:
    if shell and _is_command(line, known=True):
        return line.strip()
    if _SIGN.search(line) and (match := _PROMPT.match(line)):
        sure = match["host"] or match["sign"] == "$"
        if _is_command(match["command"], known=not sure):
            return match["command"].strip()
    if (match := _TOLD.match(line)) and _is_command(match[1], known=True):
        return match[1].strip()
    return ""


def _is_command(text: str, *, known: bool) -> bool:
    first = text.strip().split(" ", 1)[0]
    if first.rsplit("/", 1)[-1] in _COMMANDS or first.startswith(("./", "../", "~/")):
        return " " in text.strip()
    return not known and len(text.strip()) <= _COMMAND_CHARS_MAX and bool(_LETTER.search(text))
