"""Sentences, and what they are: something decided, something still open, or prose."""

import re
from collections.abc import Iterator
from typing import Final

from everlong.compaction.refs import word_set

# Of a text that is longer, the beginning and the end are read sentence by sentence.
_HEAD_CHARS: Final = 96 * 1024
_TAIL_CHARS: Final = 32 * 1024
_SENTENCE_CHARS_MAX: Final = 1200
_SENTENCE: Final = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[A-Z0-9`*_-])")
_BULLET: Final = re.compile(r"\s*(?:[-*\u2022\u2013]|\d{1,3}[.)]|\[[ x]\])\s+")
_ABBREVIATED: Final = re.compile(r"(?:^|\s)(?:\d{1,3}|[ei]\.[ge]|vs|No|Mr|Mrs|Ms|Dr|St|approx)\.$")


_PIECES_MAX: Final = 8


def _any_of(phrases: str) -> re.Pattern[str]:
    """Return an expression for any of the phrases, whole words, which semicolons separate."""
    found = (" ".join(phrase.split()) for phrase in phrases.split(";"))
    return re.compile(r"(?ai)\b(?:" + "|".join(filter(None, found)) + r")(?!\w)")


# Words of choosing, allowing and forbidding, whoever uses them.
_DECIDED: Final = _any_of(r"""
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
# Said by the user, these bind too.
_BINDING: Final = _any_of(r"""
    never; always; must; mustn't; do not; don't; only; nobody; no one; any ?more; at most; at least;
    ok(?:ay)?[,:]; has to; have to; allowed; rule; proceed; absolutely; i want; i'd rather;
    i'm happy; accepted; prefer\w*; standard; no to; yes to; no longer; hold off; roll back;
    switch\w*; keeps?; drop\w*; scrap; full stop; last word; wins?; picked; ended up; back to;
    nothing else; so\b.+\bnot;
    ^(?:use|stop|avoid|skip|leave|ship|take|put|make sure|ensure|no|yes|do it|fine)
    """)
# Something is left to be done, answered or had.
_OPEN: Final = _any_of(r"""
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
# Said by the user, these put something off.
_PUT_OFF: Final = _any_of(r"""
    later; afterwards?; eventually; at some point; in due course; whenever; no rush; not now;
    (?:once|after|when|as soon as|until|before)\b.{2,80}[,:];
    (?:once|after|when|as soon as|before)\b.{0,80}\b(?:is|are|has|have|lands?|arrives?|done|back|ready);
    (?:by|for|until|next|on) (?:tomorrow|tonight|eod|end of|(?:mon|tues|wednes|thurs|fri)day|week|month);
    forget; remember to; keep in mind; nudge; agenda; on (?:my|your|our|the) (?:list|plate);
    still (?:need|want|expect\w*|have|waiting); have to; (?:some|any)(?:body|one); nobody has;
    owes?; keeps asking; one more; also; on top of that; as well; too[.!?]?$;
    would (?:be|also|love|like)
    """)
# An agent that uses one of these may have decided something, or left something open.
_TELLING: Final = _any_of(r"""
    accept\w*; agree\w*; allow\w*; avoid\w*; better; cancel\w*; commit\w*; confirm\w*; consider\w*;
    declin\w*; discard\w*; drop\w*; exclu\w*; final\w*; implement\w*; insist\w*; instruct\w*;
    keep\w*; kept; leave\w*; left; prefer\w*; pick\w*; postpon\w*; proceed\w*; propos\w*;
    recommend\w*; reject\w*; requir\w*; revert\w*; roll(?:ed|ing)? back; select\w*; settl\w*;
    ship\w*; skip\w*; standard\w*; stick\w*; suggest\w*; switch\w*;
    use[sd]? .{0,80}\b(?:not|because); must; should; has to; have to; needs?; will; would; cannot;
    can't; could not; couldn't; did not; didn't; unable; never; only; once; until; later; next; not;
    because; since; so; therefore; for (?:these|that|this) reasons?
    """)
# What goes on about the sentence before it.
_CONTINUED: Final = re.compile(
    r"(?ai)(?:reasons?|because|since|rationale|why|otherwise|so|this|that|which|it|they|then|instead)\b"
)
_DONE: Final = _any_of(r"""
    done; finished; completed?; resolved; fixed; answered; closed; merged; delivered; sent; handled;
    shipped; rotated; arrived; received; no longer (?:needed|open|blocked); never ?mind; cancell?ed;
    solved; sorted; took care of; taken care of; unblocked; settled; checked off
    """)
# Nothing is done in a sentence with one of these. What stays open by mistake does less harm.
_UNDONE: Final = _any_of(r"""
    not; \w+n't; never(?! ?mind); no(?! longer); nobody; none; nothing; neither; nor; cannot; unable;
    without; refused; refuses; fails?; failed; failing; yet; almost; nearly; half; part(?:ly|ially)?;
    still; until; unless; once; will; to be; should; must; needs?; if; try(?:ing)?; tried
    """)
_SHORT_WORDS_MAX: Final = 4
_HEADING: Final = re.compile(r"[^.!?]{2,80}:\s*$")
_WORD: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{3,}")
_COMMON: Final = word_set(
    "about after again also been before could does done each from have here into just last like make"
    " more need next once only open over please should some still than that their them then there"
    " these they this todo until very waiting want were what when where which while will with would"
    " your"
)


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of a text, each with the heading that it stands under. No code blocks."""
    if len(text) > _HEAD_CHARS + _TAIL_CHARS:
        text = f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"
    heading, fenced = "", False
    for line in text.replace("\u2019", "'").splitlines():
        line = line.strip()
        if line.startswith("```"):
            # What follows the end of a block is no longer code.
            line = line.lstrip("`").strip() if fenced else ""
            fenced = not fenced
        if fenced or not line:
            continue
        bullet = _BULLET.match(line)
        if not bullet:
            heading = line if _HEADING.fullmatch(line) else ""
        if bullet or not heading:
            for sentence in _split(line[bullet.end() :] if bullet else line):
                yield sentence[:_SENTENCE_CHARS_MAX], heading


def is_decision(sentence: str, heading: str, *, by_user: bool) -> bool:
    """Tell whether something is decided in a sentence, or ruled by the user."""
    if sentence.endswith("?"):
        return False
    if _DECIDED.search(sentence) or (heading and _DECIDED.search(heading)):
        return True
    return by_user and bool(_BINDING.search(sentence))


def goes_on(sentence: str) -> bool:
    """Tell whether a sentence says more about the one before it, as a very short one mostly does."""
    return bool(_CONTINUED.match(sentence)) or sentence.count(" ") < _SHORT_WORDS_MAX


def answers(sentence: str, before: str) -> bool:
    """Tell whether somebody answers what they have just asked themselves."""
    return before.endswith("?") and sentence.count(" ") < _SHORT_WORDS_MAX


def is_open(sentence: str, heading: str, *, by_user: bool) -> bool:
    """Tell whether a sentence says that something is still to be done, answered or had."""
    if _OPEN.search(sentence) or (heading and _OPEN.search(heading)):
        return True
    return by_user and bool(_PUT_OFF.search(sentence))


def may_matter(sentence: str) -> bool:
    """Tell whether a sentence of an agent may be more than what it does at the moment."""
    return sentence.endswith("?") or bool(_TELLING.search(sentence))


def is_done(sentence: str) -> bool:
    """Tell whether a sentence may say that something is no longer open."""
    return bool(_DONE.search(sentence)) and not _UNDONE.search(sentence)


def stems(sentence: str) -> frozenset[str]:
    """Return the beginnings of the words that carry what a sentence is about."""
    found = (word.rstrip(".-") for word in _WORD.findall(sentence.lower()))
    return frozenset(word[:5] for word in found if word not in _COMMON and len(word) > 3)


def closes(said: frozenset[str], asked: frozenset[str]) -> bool:
    """Tell by their stems whether a sentence that speaks of an end is about an ask: most are in it."""
    return len(asked) > 2 and 3 * len(asked & said) >= 2 * len(asked)


def _split(line: str) -> Iterator[str]:
    pending: list[str] = []
    for piece in map(str.strip, _SENTENCE.split(line)):
        if piece:
            pending.append(piece)
        # What ends in an abbreviation goes on; only the end of the piece tells.
        if pending and (not _ABBREVIATED.search(piece[-16:]) or len(pending) > _PIECES_MAX):
            yield " ".join(pending)
            pending = []
    if pending:
        yield " ".join(pending)
