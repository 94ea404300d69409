"""Extraction: recognises paths, ids, numbers, commands, and sentences that decide or ask something.

For paths, ids and numbers a text is split into words, and each word is classified by itself, so a text
of any shape takes one pass: no expression runs over more than a word. Commands are recognised line by
line, and sentences by cue phrases. Every non-ASCII character counts as a letter, whatever Unicode
version a Python has, so that results are the same on every machine.
"""

import functools
import re
from collections.abc import Iterator
from typing import Final

# Separators: no path, id or number contains one.
_SPLIT: Final = re.compile("[\\s\"'`<>|,;()\\[\\]{}\u2018-\u201f\u00ab\u00bb]+")
# The same separators, except a comma within a number.
_NUMBER_SPLIT: Final = re.compile(f"(?:{_SPLIT.pattern.replace(',', '')}|,(?![0-9]))+")
_PUNCTUATION: Final = ",:;!?*=&^$"
_WORD_CHARS_MAX: Final = 300
# Two plain words with a slash are a path only if they are long: `docs/reference`, not `and/or`.
_PLAIN_PATH_CHARS_MIN: Final = 9


def split_words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


_EXTENSIONS: Final = split_words(
    "avro bak bat c cc cfg cjs class conf cpp cs css csv dart db diff dll doc docx dockerfile eml env"
    " erb ex exe go gradle gz h hcl hpp htm html ics ini ipynb jar java jpeg jpg js json jsonl jsx key"
    " kt lock log lua md mdx mjs mp4 msg msi ndjson orc out parquet patch pcap pdf pem php pkl pl"
    " plist png ppt pptx proto ps1 pub py pyi pyx r rb rego rs rst sass scala scss sh so sql sqlite"
    " svg swift tar tex tf tfstate tfvars tgz tmpl toml tpl ts tsv tsx txt vue wal wasm whl xls xlsx"
    " xml yaml yml zig zip zst"
)
_LETTER: Final = re.compile(r"[A-Za-z\x80-\U0010ffff]")
_DIGIT: Final = re.compile(r"[0-9]")
# A place within a file: a line, a column, a test.
_WITHIN: Final = re.compile(r"(?::[0-9]+){1,2}:?$|::?$|::[A-Za-z_].*$|#L[0-9]+(?:-L?[0-9]+)?$")
_WINDOWS: Final = re.compile(r"(?:[A-Za-z]:[\\/]|\\\\[A-Za-z0-9_.$-]+\\).")
_COMPONENTS: Final = re.compile(
    r"[A-Za-z0-9_.@+~%:*$#\x80-\U0010ffff-]*(?:/[A-Za-z0-9_.@+~%:*$#\x80-\U0010ffff-]*)+"
)
_STEM: Final = re.compile(r"[A-Za-z0-9_.@+~\x80-\U0010ffff-]+")
_HIDDEN: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9_]+")
_ROOTS: Final = ("/", "./", "../", "~/", "$")
_ID: Final = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"  # a UUID
    r"|(?:0x|sha[0-9]{1,3}:|[a-z]{1,4}[-_:])?[0-9a-f]{7,128}|[0-9A-F]{8,64}"
    r"|[A-Z][A-Z0-9]{1,11}(?:-[A-Z]{1,6})?-[0-9]{1,10}(?:-[0-9]+)*"  # a ticket
)
_NAMED: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_.:#~][A-Za-z0-9]+)+")
_SOLID: Final = re.compile(r"[A-Za-z0-9]{8,64}")
_EMAIL: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:[:/][0-9]{1,5})?")
_DATE: Final = re.compile(r"[0-9]{2,4}[-/.:][0-9]{2}[-/.:][0-9]{2}\S*|[0-9]{8}T[0-9]+Z?")
_NUMBERED: Final = re.compile(r"#[0-9]{2,10}")
_NUMBER: Final = re.compile(
    r"[$€£¥~±+<>≤≥-]{0,2}[0-9]+(?:[.,:_/-][0-9]+)*(?:[%‰µ°x+]|[A-Za-z]{1,4}(?:/[a-z]{1,3})?)?"
)


def find_words(text: str) -> Iterator[str]:
    """Yield the distinct words of a text that may be paths or ids, in order."""
    for word in dict.fromkeys(_SPLIT.split(text)):
        if 4 <= len(word) <= _WORD_CHARS_MAX and not word.isalpha() and "…" not in word:
            yield word


def find_refs(text: str, *, bulk: bool) -> list[str]:
    """Return the paths and ids of a text, each once. In bulk output the rules for ids are stricter."""
    found: dict[str, None] = {}
    for word in find_words(text):
        for ref in _find_refs_in_word(word, bulk):
            found[ref] = None
    return list(found)


def find_numbers(text: str) -> list[tuple[str, str]]:
    """Return the numbers of a text, each also with the words around it."""
    if not _DIGIT.search(text):
        return []
    parts = [part.strip("." + _PUNCTUATION) for part in _NUMBER_SPLIT.split(text)]
    parts = [part for part in parts if part]
    found = []
    for at, part in enumerate(parts):
        name, sign, value = part.rpartition("=")
        if len(value) <= 40 and _NUMBER.fullmatch(value):
            before = f"{name}{sign}" if sign else _get_neighbour(parts, at - 1)
            snippet = f"{before}{value}" if sign else f"{before} {value}"
            found.append((value, f"{snippet} {_get_neighbour(parts, at + 1)}".strip()))
    return found


def _get_neighbour(parts: list[str], at: int) -> str:
    if not 0 <= at < len(parts) or len(parts[at]) > 24:
        return ""
    return parts[at]


# Cached: words repeat within a text and from one text to the next.
@functools.lru_cache(maxsize=16_384)
def _find_refs_in_word(word: str, bulk: bool) -> tuple[str, ...]:
    return tuple(find_in_word(word, bulk))


def find_in_word(word: str, bulk: bool) -> Iterator[str]:
    """Yield the paths and ids of a word."""
    word = word.strip(_PUNCTUATION).rstrip("." + _PUNCTUATION)
    if "://" in word:
        address = word.partition("=")[2] if _is_setting(word) else word
        # After the host alone, the number is a port and not a line.
        yield _WITHIN.sub("", address) if address.count("/") > 2 else address
    elif _WINDOWS.match(word):
        word = _WITHIN.sub("", word)
        yield word if word.startswith("\\\\") else word.replace("\\\\", "\\")
    elif "=" in word or "\\n" in word or "\\t" in word or ".." in word.lstrip("."):
        for piece in re.split(r"=|\\[nt]|(?<=[A-Za-z0-9])\.\.+", word):
            if 3 < len(piece) < len(word):
                yield from find_in_word(piece, bulk)
    else:
        if not _ADDRESS.fullmatch(word):
            word = _WITHIN.sub("", word)
        if word[:2] in ("a/", "b/") and "/" in word[2:]:
            word = word[2:]
        if len(word) > 3 and (is_path(word, bulk) or is_id(word, bulk)):
            yield word


def _is_setting(word: str) -> bool:
    """Return whether a word is like `URL=https://host`, and not like `https://host?a=b`."""
    return "=" in word.partition("://")[0]


def is_path(word: str, bulk: bool) -> bool:
    """Return whether a word is a path."""
    if "/" not in word:
        stem, dot, extension = word.rpartition(".")
        if dot and extension.lower() in _EXTENSIONS:
            return bool(_STEM.fullmatch(stem))
        return bool(_HIDDEN.fullmatch(word))
    if not _COMPONENTS.fullmatch(word) or not _LETTER.search(word):
        return False
    if word.startswith(_ROOTS):
        return True
    if _DATE.fullmatch(word) or word.endswith("/s"):
        return False
    if (
        word.strip("/").count("/") > 1
        or _DIGIT.search(word)
        or not {".", "_", "-"}.isdisjoint(word)
    ):
        return True
    return not bulk and len(word) > _PLAIN_PATH_CHARS_MIN


def is_id(word: str, bulk: bool) -> bool:
    """Return whether a word is an id: of an object, a version, an address, a person."""
    if _EMAIL.fullmatch(word) or _ADDRESS.fullmatch(word):
        return True
    digits = len(_DIGIT.findall(word))
    if not digits or _DATE.fullmatch(word):
        return False
    if _NUMBERED.fullmatch(word):
        return not bulk
    if not _LETTER.search(word):
        return False
    if _ID.fullmatch(word):
        return True
    if _NAMED.fullmatch(word):
        return _is_named_id(word, digits, bulk)
    return bool(_SOLID.fullmatch(word)) and digits >= 2 and not _NUMBER.fullmatch(word)


def _is_named_id(word: str, digits: int, bulk: bool) -> bool:
    if not bulk:
        return len(word) >= 6
    pieces = re.split(r"[-_.:#~]", word)
    coded = any(len(piece) >= 4 and _DIGIT.search(piece) for piece in pieces[1:])
    return len(word) >= 8 and digits >= 2 and coded


_COMMANDS: Final = split_words(
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
_CODE: Final = re.compile(r"(?<!`)`([^`\n]{3,300})`(?!`)")
_SHELLS: Final = frozenset(["", "sh", "bash", "shell", "console", "zsh", "powershell", "text"])
# A sign alone may be something else; after a user and a host it is a prompt.
_PROMPT: Final = re.compile(
    # Runs of one kind of character follow each other at most twice, so a line takes linear time.
    r"(?am)^[ \t]*+(?:\(\w[\w.-]{0,40}\)[ \t]?)?"
    r"(?:(?P<host>\[?[\w.-]{1,64}@[\w.-]{1,64}[^$#%>\n]{0,80}|PS [A-Z]:\\[^>\n]{0,80})"
    r"|[\w./~:-]{0,40}[ \t]?)(?P<sign>\$|#|%|\u276f|\u279c|>)[ \t]+(?P<command>\S.*)"
)
_ANNOUNCED: Final = re.compile(
    r"(?aim)^[ \t]*+(?:\[[^\]\n]{0,40}\][ \t]*+)?"
    r"(?:\+|run|ran|running|exec|executing|executed|command|cmd|invoking)(?: command| step)?"
    r"(?:[ \t]*[:=>$][ \t]*|[ \t]+)(\S.*)"
)


def find_commands(text: str, *, bulk: bool) -> list[str]:
    """Return the shell commands of a text: after a prompt, in a code block, or in backticks."""
    found: dict[str, None] = {}
    if not bulk and "`" in text:
        for code in _CODE.findall(text):
            if _is_command(code, known=" " not in code.strip()):
                found[code.strip()] = None
    if "```" not in text:
        found.update(dict.fromkeys(_find_prompts(text)))
        return list(found)
    shell = False
    for line in text.splitlines():
        if not line or len(line) > _LINE_CHARS_MAX:
            continue
        if line.lstrip().startswith("```"):
            shell = not shell and line.strip().strip("`").lower() in _SHELLS
        elif command := _find_command(line, shell):
            found[command] = None
    return list(found)


def _find_command(line: str, shell: bool) -> str:
    if shell and _is_command(line, known=True):
        return line.strip()
    return next(iter(_find_prompts(line)), "")


def _find_prompts(text: str) -> list[str]:
    """Return the commands after a prompt or an announcement, in order."""
    found: dict[int, str] = {}
    for match in _ANNOUNCED.finditer(text):
        if _is_command(match[1], known=True):
            found[match.start()] = match[1].strip()
    for match in _PROMPT.finditer(text):
        sure = match["host"] or match["sign"] == "$"
        if _is_command(match["command"], known=not sure):
            found[match.start()] = match["command"].strip()
    return [found[at] for at in sorted(found) if len(found[at]) <= _LINE_CHARS_MAX]


def _is_command(text: str, *, known: bool) -> bool:
    first = text.strip().split(" ", 1)[0]
    if first.rsplit("/", 1)[-1] in _COMMANDS or first.startswith(("./", "../", "~/")):
        return " " in text.strip()
    return not known and len(text.strip()) <= _COMMAND_CHARS_MAX and bool(_LETTER.search(text))


# Parts of a longer text that are read sentence by sentence: its beginning and its end.
_HEAD_CHARS: Final = 96 * 1024
_TAIL_CHARS: Final = 32 * 1024
_SENTENCE_CHARS_MAX: Final = 1200
_SENTENCE: Final = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[A-Z0-9`*_-])")
_BULLET: Final = re.compile(r"\s*(?:[-*\u2022\u2013]|\d{1,3}[.)]|\[[ x]\])\s+")
_ABBREVIATED: Final = re.compile(r"(?:^|\s)(?:\d{1,3}|[ei]\.[ge]|vs|No|Mr|Mrs|Ms|Dr|St|approx)\.$")


_PIECES_MAX: Final = 8


def _compile_phrases(phrases: str) -> re.Pattern[str]:
    """Compile phrases, separated by semicolons, to an expression that matches whole words.

    It is for texts in lower case: ignoring case would make it several times slower.
    """
    found = (" ".join(phrase.split()) for phrase in phrases.split(";"))
    return re.compile(r"(?a)\b(?:" + "|".join(filter(None, found)) + r")(?!\w)")


# Words of choosing, allowing and forbidding, by the user or the agent.
_DECIDED: Final = _compile_phrases(r"""
    decided; decisions?; agreed; consensus; settled; chose; chosen; choosing; opted; voted;
    choice (?:is|fell); approve[ds]; rejected; vetoed; overruled; turned down;
    ruled (?:out|against); verdict; discarded; sign(?:ed|s)?[ -]?off; green[- ]?li(?:ght|t);
    go-ahead; blessing; we(?:'ll| will| shall| won't|'re not| are not);
    (?:let's|let us) (?!see|look|check|try|find|start|begin|run|read|open|first|verify|wait)\w+;
    (?:go|going|went|gone|stick|sticking|stay|staying) (?:with|for|ahead with); instead of;
    rather than; in favou?r of; in place of; replac(?:es|ed by); from now on; from today;
    going forward; henceforth; for the record; on purpose; trade-?off; postponed; cancell?ed;
    abandoned; scrapped; off the table; out of scope; not an option; conclusion; concluded;
    confirmed; finali[sz]ed; (?:is|are|stays?) final;
    (?:as|per) (?:instructed|agreed|requested|discussed|settled|\w+'s);
    (?:rule|policy|plan|outcome|design note|resolution|final state)(?: \w+){0,6}:;
    made up (?:my|our|his|her|their) mind; , not \w+; prefers; so that is what;
    i (?:have |had )?(?:\w+ed|chose|kept|took|left|went|made)\b.{2,120}(?:because|since|so that|:|;);
    it (?:is|will be)[,.!]?(?: then)?[.!]?$
    """)
# These words are binding too if the user says them.
_BINDING: Final = _compile_phrases(r"""
    never; always; must; mustn't; do not; don't; only; nobody; no one; any ?more; at most; at least;
    ok(?:ay)?[,:]; has to; have to; allowed; rule; proceed; absolutely; i want; i'd rather;
    i'm happy; accepted; prefer\w*; standard; no to; yes to; no longer; hold off; roll back;
    switch\w*; keeps?; drop\w*; scrap; full stop; last word; wins?; picked; ended up; back to;
    nothing else; so\b.+\bnot;
    ^(?:use|stop|avoid|skip|leave|ship|take|put|make sure|ensure|no|yes|do it|fine)
    """)
# Something is still to be done, answered or received.
_OPEN: Final = _compile_phrases(r"""
    to-?dos?; fixme; tb[cd]; await(?:ing|s); waiting (?:for|on|until|to hear);
    blocked (?:on|by|until); blocker; pending; outstanding; unresolved; unanswered; undecided;
    unfinished; unable to; open (?:questions?|items?|points?|issues?|asks?|requests?|tasks?|ends?);
    still (?:unclear|open|missing|undone|to (?:do|be)|needs?|has to|have to|owes?|waiting); yet to;
    (?:not|n't|never|cannot|unable|nobody|no one)\b.{0,80} yet; did not get to;
    (?:not|never) (?:yet )?(?:done|started|begun|got (?:to|around)); remaining work;
    (?:has|have) not (?:replied|answered|responded|confirmed); (?:some|any)(?:body|one)\b.{0,40} has to;
    left (?:to do|open|for (?:next|later|another)); remains?(?: is)? to; remind; note to self;
    circle back; come back to (?:this|that|it); get back to (?:you|this); lose track;
    follow(?:ing)?[- ]?ups?; next steps?; action items?; parked; backlog; skipped one; deferred;
    to be (?:done|confirmed|decided|determined|clarified|agreed|answered);
    needs? (?:\w+ )?(?:sign-?off|confirmation|approval|credentials|decision|answer|permission|access);
    let (?:me|us) know; say the word; do you want me; would you like me; shall i; should (?:i|we)
    """)
# These words postpone something if the user says them.
_PUT_OFF: Final = _compile_phrases(r"""
    later; afterwards?; eventually; at some point; in due course; whenever; no rush; not now;
    (?:once|after|when|as soon as|until|before)\b.{2,80}[,:];
    (?:once|after|when|as soon as|before)\b.{0,80}\b(?:is|are|has|have|lands?|arrives?|done|back|ready);
    (?:by|for|until|next|on) (?:tomorrow|tonight|eod|end of|(?:mon|tues|wednes|thurs|fri)day|week|month);
    forget; remember to; keep in mind; nudge; agenda; on (?:my|your|our|the) (?:list|plate);
    still (?:need|want|expect\w*|have|waiting); have to; (?:some|any)(?:body|one); nobody has;
    owes?; keeps asking; one more; also; on top of that; as well; too[.!?]?$;
    would (?:be|also|love|like)
    """)
# Words with which an agent may have decided something, or left something open.
_SIGNIFICANT: Final = _compile_phrases(r"""
    accept\w*; agree\w*; allow\w*; avoid\w*; better; cancel\w*; commit\w*; confirm\w*; consider\w*;
    declin\w*; discard\w*; drop\w*; exclu\w*; final\w*; implement\w*; insist\w*; instruct\w*;
    keep\w*; kept; leave\w*; left; prefer\w*; pick\w*; postpon\w*; proceed\w*; propos\w*;
    recommend\w*; reject\w*; requir\w*; revert\w*; roll(?:ed|ing)? back; select\w*; settl\w*;
    ship\w*; skip\w*; standard\w*; stick\w*; suggest\w*; switch\w*;
    use[sd]? .{0,80}\b(?:not|because); must; should; has to; have to; needs?; will; would; cannot;
    can't; could not; couldn't; did not; didn't; unable; never; only; once; until; later; next; not;
    because; since; so; therefore; for (?:these|that|this) reasons?
    """)
# First words of a sentence that continues the one before it.
_CONTINUED: Final = re.compile(
    r"(?ai)(?:reasons?|because|since|rationale|why|otherwise|so|this|that|which|it|they|then|instead)\b"
)
_DONE: Final = _compile_phrases(r"""
    done; finished; completed?; resolved; fixed; answered; closed; merged; delivered; sent; handled;
    shipped; rotated; arrived; received; no longer (?:needed|open|blocked); never ?mind; cancell?ed;
    solved; sorted; took care of; taken care of; unblocked; settled; checked off
    """)
# A sentence with one of these reports nothing as done. A request left open by mistake does less harm.
_UNDONE: Final = _compile_phrases(r"""
    not; \w+n't; never(?! ?mind); no(?! longer); nobody; none; nothing; neither; nor; cannot; unable;
    without; refused; refuses; fails?; failed; failing; yet; almost; nearly; half; part(?:ly|ially)?;
    still; until; unless; once; will; to be; should; must; needs?; if; try(?:ing)?; tried
    """)
_SHORT_WORDS_MAX: Final = 4
_HEADING: Final = re.compile(r"[^.!?]{2,80}:\s*$")
_WORD: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{3,}")
_COMMON: Final = split_words(
    "about after again also been before could does done each from have here into just last like make"
    " more need next once only open over please should some still than that their them then there"
    " these they this todo until very waiting want were what when where which while will with would"
    " your"
)


def split_sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of a text, without code blocks, each with the heading above it."""
    if len(text) > _HEAD_CHARS + _TAIL_CHARS:
        text = f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"
    heading, fenced = "", False
    for line in text.replace("\u2019", "'").splitlines():
        line = line.strip()
        if line.startswith("```"):
            # Text after the end of a block is not code.
            line = line.lstrip("`").strip() if fenced else ""
            fenced = not fenced
        if fenced or not line:
            continue
        bullet = _BULLET.match(line)
        if not bullet:
            heading = line if _HEADING.fullmatch(line) else ""
        if bullet or not heading:
            for sentence in _split_line(line[bullet.end() :] if bullet else line):
                yield sentence[:_SENTENCE_CHARS_MAX], heading


def is_decision(sentence: str, heading: str, *, by_user: bool) -> bool:
    """Return whether a sentence decides something, or states a rule of the user."""
    if sentence.endswith("?"):
        return False
    if _DECIDED.search(sentence.lower()) or (heading and _DECIDED.search(heading.lower())):
        return True
    return by_user and bool(_BINDING.search(sentence.lower()))


def is_continuation(sentence: str) -> bool:
    """Return whether a sentence continues the previous sentence. Very short ones mostly do."""
    return bool(_CONTINUED.match(sentence)) or sentence.count(" ") < _SHORT_WORDS_MAX


def is_answer(sentence: str, before: str) -> bool:
    """Return whether a sentence is the speaker's answer to their own question before it."""
    return before.endswith("?") and sentence.count(" ") < _SHORT_WORDS_MAX


def is_open(sentence: str, heading: str, *, by_user: bool) -> bool:
    """Return whether a sentence says that something is still to be done, answered or received."""
    if _OPEN.search(sentence.lower()) or (heading and _OPEN.search(heading.lower())):
        return True
    return by_user and bool(_PUT_OFF.search(sentence.lower()))


def may_matter(sentence: str) -> bool:
    """Return whether a sentence of an agent may matter beyond the current step."""
    return sentence.endswith("?") or bool(_SIGNIFICANT.search(sentence.lower()))


def is_done(sentence: str) -> bool:
    """Return whether a sentence may report that something is done."""
    return bool(_DONE.search(sentence.lower())) and not _UNDONE.search(sentence.lower())


def find_stems(sentence: str) -> frozenset[str]:
    """Return the beginnings of a sentence's significant words."""
    found = (word.rstrip(".-") for word in _WORD.findall(sentence.lower()))
    return frozenset(word[:5] for word in found if word not in _COMMON and len(word) > 3)


def is_about(report: frozenset[str], request: frozenset[str]) -> bool:
    """Return whether a report that something is done is about a request: it has most of its stems."""
    return len(request) > 2 and 3 * len(request & report) >= 2 * len(request)


def _split_line(line: str) -> Iterator[str]:
    pending: list[str] = []
    for piece in map(str.strip, _SENTENCE.split(line)):
        if piece:
            pending.append(piece)
        # A piece that ends in an abbreviation continues; only its end is checked.
        if pending and (not _ABBREVIATED.search(piece[-16:]) or len(pending) > _PIECES_MAX):
            yield " ".join(pending)
            pending = []
    if pending:
        yield " ".join(pending)
