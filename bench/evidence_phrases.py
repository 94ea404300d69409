"""Phrases of users and agents for the corpus of transcripts: many forms of each idea.

The generator fills the slots in braces, and records the planted evidence. This module does not
depend on the cues of compaction.
"""

import dataclasses
from typing import Final


def lines(text: str) -> list[str]:
    """Return the lines of a text, which are forms of one idea."""
    return [line.strip() for line in text.strip().splitlines()]


def split(text: str) -> list[str]:
    """Return the parts of a text, which semicolons separate."""
    return [" ".join(part.split()) for part in text.split(";")]


PEOPLE: Final = split("Dana; Priya; Tomás; Wei; Ingrid; Kofi; Marta; Jonas; Aiko; Farid; Lena; Sam")

# Something was decided. {x} and {y} are options, {who} a person, {why} a reason.
_DECISIONS_BY_USER: Final = lines("""
    We decided to go with {x}, because {why}.
    OK, {x} it is.
    Let's use {x} rather than {y}; {why}.
    Decision from this morning's call: {x}, not {y}.
    Use {x} for this. {y} is off the table.
    I talked to {who}: we keep {x} and drop {y}.
    {who} signed off on {x} today.
    No {y}, please: {why}. Take {x}.
    From now on everything goes through {x}.
    We will stay on {x} until the end of the quarter.
    I'd rather have {x} than {y}, so do that.
    {who} vetoed {y}. {x} stands.
    Never touch {y} without asking {who} first.
    The team voted: {x} wins over {y}.
    Fine, ship {x} and leave {y} alone.
    Approved by {who}: {x} for all environments.
    We're not doing {y} this year.
    I have made up my mind, we take {x}.
    Confirmed with {who}, {x} is what we want.
    Scrap {y}, it was never going to work; {x} replaces it.
    Go for {x}.
    I want {x}, full stop.
    {x}, please, and nothing else.
    Management picked {x} last night.
    The answer from legal is no to {y}.
    {y}? Absolutely not.
    Rule for this project: {x} everywhere.
    {who} has the last word, and it is {x}.
    For the record, {x} was accepted and {y} was not.
    Roll back {y} and put {x} in its place.
    We ended up with {x}.
    {x} is the standard from today.
    Nobody is allowed to use {y} any more.
    {who} said yes to {x}.
    Budget is capped, so {x} and not {y}.
    You have my blessing for {x}.
    It has to be {x}.
    I'm happy with {x}, proceed.
    Hold off on {y}.
    We tried {y} and it failed, so we are back to {x}.
    """)
_DECISIONS_BY_AGENT: Final = lines("""
    I chose {x} over {y}, since {why}.
    Agreed: {x} is the way to go, as {who} asked for.
    Decision: {x}. Reason: {why}.
    As settled with {who}, {x} replaces {y}.
    I am going with {x} here because {why}.
    We will not use {y}: {why}.
    {who} approved {x} with the condition that {y} stays as a fallback.
    I opted for {x}; {y} would have meant that {why}.
    Conclusion: keep {x}, remove {y}.
    Ruled out {y} because {why}, so {x} remains.
    Per {who}'s call, {x} is final.
    The choice fell on {x}, given that {why}.
    We settled on {x} after comparing it with {y}.
    Sticking with {x} for now; {why}.
    {y} is rejected: {why}.
    My recommendation, which {who} accepted, is {x}.
    {x} it will be, then.
    I went ahead with {x} and left {y} out.
    {who} prefers {x}, so that is what I implemented.
    The plan: {x} first, {y} never.
    This uses {x}, not {y}, because {why}.
    I picked {x} since {why}.
    Design note: {x} was selected.
    {y} was considered and discarded.
    Outcome of the review with {who}: {x}.
    I have switched from {y} to {x}.
    Trade-off accepted: {x} costs more, but {why}.
    As instructed, {x}.
    I kept {x} on purpose: {why}.
    Final state: {x} is in, {y} is out.
    """)

# Something is wanted, and is not done when the transcript ends.
_ASKS_BY_USER: Final = lines("""
    Later on, please also {do}.
    When that is finished, {do}.
    Don't forget to {do}.
    I still need you to {do}.
    At some point somebody has to {do}.
    Could you {do} once {who} is back from leave?
    And remind me to {do}.
    Before we close this, {do}.
    Put it on the list: {do}.
    I would also like you to {do}, no rush.
    After the release, {do}.
    One open point: who is going to {do}?
    Not now, but {do} by Friday.
    As soon as {who} answers, {do}.
    Follow up with {who} and {do}.
    Next week we have to {do}.
    There is one more thing: {do}, when you get to it.
    Please keep in mind that we have yet to {do}.
    Let me know when you are able to {do}.
    We owe {who} an answer: {do}.
    Somebody should {do}.
    Can you also {do}?
    I'm still expecting you to {do}.
    It would be great if we could {do}.
    Nobody has had time to {do}.
    Did anyone {do}?
    My boss keeps asking us to {do}.
    For Monday: {do}.
    Please {do} too.
    How long would it take to {do}?
    You never got around to the request to {do}.
    Once things calm down, {do}.
    We mustn't lose track of this: {do}.
    On top of that, {do}.
    Is there any way to {do}?
    Also on the agenda: {do}.
    """)
_ASKS_BY_AGENT: Final = lines("""
    TODO: {do}.
    I am waiting for {who} to confirm before I {do}.
    Still open: {do}.
    I could not {do} yet, access is missing.
    Blocked on {who}: without an answer I cannot {do}.
    What remains is to {do}.
    Open question for {who}: should we {do}?
    I have not been able to {do}; the credentials are pending.
    Next step, not started: {do}.
    Awaiting {who}'s reply so that I can {do}.
    To be done afterwards: {do}.
    I need a decision from {who} on whether to {do}.
    Unresolved: {who} wants us to {do}.
    I will come back to this and {do}.
    I did not get to it: {do}.
    Left for next time: {do}.
    Not done: {do}.
    I was unable to {do} because the token expired.
    Somebody with admin rights has to {do}.
    Pending your go-ahead, I would {do}.
    {who} has not replied, so I could not {do}.
    Remaining work: {do}.
    I suggest to {do} next; say the word.
    This needs {who}: {do}.
    Do you want me to {do}?
    Shall I {do}?
    I skipped one thing: {do}.
    Deferred: {do}.
    As a follow-up, {do}.
    Someone still has to {do}.
    Unfinished: {do}.
    """)


@dataclasses.dataclass(frozen=True)
class Forms:
    """Templates of decisions and of requests."""

    decisions_by_user: list[str]
    decisions_by_agent: list[str]
    asks_by_user: list[str]
    asks_by_agent: list[str]


FORMS: Final = Forms(_DECISIONS_BY_USER, _DECISIONS_BY_AGENT, _ASKS_BY_USER, _ASKS_BY_AGENT)

# Headings whose list items carry no word of their own that marks them.
OPEN_HEADINGS: Final = split("Open points:; Still to do:; Next steps:; TODO:; Waiting for others:")
DECISION_HEADINGS: Final = split(
    "Decisions:; What was decided:; Agreed with {who}:; Decided so far:"
)

# A request, and the text that reports it done. The request is open in between, and closed at the end.
CLOSED: Final = [
    ("Later, please {do}.", "Done: I was asked to {do}, and that is finished."),
    ("Don't forget to {do}.", "The reminder to {do} is handled."),
    ("After lunch, {do}.", "I took care of it: {do} is done."),
    ("Once you are through, {do}.", "As you wanted me to {do}: completed."),
]

REQUESTS: Final = lines("""
    Can you find out why {thing} {symptom}?
    Please look into {thing}: it {symptom}.
    {thing} {symptom} since yesterday. Have a look.
    I need an explanation of why {thing} {symptom}.
    Start with {thing}. It {symptom}.
    What is going on with {thing}? It {symptom}.
    Next topic: {thing} {symptom}.
    Customers say that {thing} {symptom}. It used to take {f} s and now takes {f2} s.
    We see {n} {things} a day, and {thing} {symptom}.
    """)
NARRATION: Final = lines("""
    Let me check {thing}.
    I'll look at {thing} first.
    That is not what I expected. Looking further.
    Now the other side of it.
    This looks promising; going one level deeper to see how {thing} behaves when it is called twice.
    Checking whether the same holds for {thing}.
    Nothing there. Trying another angle.
    Reading on.
    I want to see the surroundings of that before I change anything.
    The output mentions {thing}; I suspect it {symptom} for the same reason, so I look there next.
    Two places look alike here. The first is harmless, the second might explain why {thing} {symptom}.
    To rule out a coincidence I repeat the call with other arguments and compare what comes back.
    It seems that {thing} is involved only indirectly.
    The listing is longer than expected; filtering it down to what belongs to {thing}.
    """)
# Numbers that an agent reports, in its own words.
FINDINGS: Final = lines("""
    The {metric} rose from {f} ms to {f2} ms.
    {n} of {n2} {things} are affected ({p}).
    I count {n} {things}, {n2} of them new.
    Median {metric}: {f} ms; the 99th percentile is {f2} ms.
    It cost ${f} over the last {n} days.
    The gap is {p}, against {p2} before.
    {metric} peaked at {n} around noon.
    With the change, {metric} falls by {p}.
    There were {n} {things} and exactly {n2} failures.
    Version {v} has it, {v2} does not.
    It takes {f} s cold and {f2} s warm.
    About {n} {things} a minute, {f} KB each.
    """)
ANSWERS: Final = lines("""
    In short: {thing} {symptom} because {why}.
    Found it. {why}, and that is why {thing} {symptom}.
    The cause is clear now: {why}.
    {thing} is back to normal; the cause was that {why}.
    """)

# What the five kinds of work are about, and their tools, each with the names of its arguments.
DOMAINS: Final[dict[str, dict[str, list[str]]]] = {
    "coding": {
        "things": split("""
            the import path; the parser; the retry loop; the session cache; the CLI; the type
            checker run; the flaky suite; the migration; the date handling
        """),
        "symptoms": split("""
            fails on Windows; leaks file handles; is slow on large inputs; drops the last line;
            raises under load; returns stale values; breaks on empty input
        """),
        "options": split("""
            a bounded queue; asyncio; a plain thread pool; SQLite; the visitor pattern;
            dataclasses; attrs; a feature flag; the old parser; Protobuf; msgpack
        """),
        "reasons": split("""
            the tests need no network then; it is half the code; the other one is unmaintained;
            startup time matters more; nobody could explain the lock order
        """),
        "todos": split("""
            update the changelog; add a regression test for the empty file; bump the minimum
            Python; remove the deprecated alias; profile the tokenizer; write the migration
            guide; delete the dead branch in the scheduler; port the Windows installer; document
            the exit codes; rename the config section; squash the fixup commits; pin the
            formatter
        """),
        "metrics": split("parse time; memory use; suite duration; import time"),
        "counted": split("tests; files; call sites; warnings"),
        "tools": split("""
            bash command; bash command; read_file path; read_file path; edit path text; grep
            query
        """),
    },
    "ops": {
        "things": split("""
            checkout; the ingress; the payment worker; node pool b; the Kafka consumer; the
            nightly backup; DNS resolution; the certificate renewal; the autoscaler
        """),
        "symptoms": split("""
            times out; restarts every few minutes; lags behind; returns 502 now and then; runs
            out of memory; does not scale down; fails its health check
        """),
        "options": split("""
            blue-green; a canary; spot instances; two replicas; PgBouncer; a bigger node pool;
            rate limiting at the edge; the old load balancer; Redis Cluster; a read replica
        """),
        "reasons": split("""
            the budget is fixed; a rollback takes minutes then; we had that outage in March;
            on-call asked for it; it survives the loss of a zone
        """),
        "todos": split("""
            rotate the staging credentials; raise the alert threshold; delete the orphaned
            volumes; write the postmortem; move the cron job to the new cluster; test the
            restore; file the quota increase; patch the bastion host; clean up the old DNS
            records; switch off the debug logging; drain the old nodes; renew the pager contract
        """),
        "metrics": split("p99 latency; consumer lag; heap use; error rate"),
        "counted": split("pods; requests; nodes; alerts"),
        "tools": split("""
            shell cmd; shell cmd; shell cmd; read_file path; get_incident id; metrics query
        """),
    },
    "data": {
        "things": split("""
            the revenue table; the churn model; the nightly load; the sessions join; the
            currency conversion; the dedup step; the March partition; the funnel report
        """),
        "symptoms": split("""
            does not add up; has duplicates; is empty for some regions; takes hours; disagrees
            with finance; drifts; counts returns twice
        """),
        "options": split("""
            a surrogate key; an incremental model; a full refresh; Parquet; the events table;
            daily grain; hourly grain; a left join; the finance definition; DuckDB
        """),
        "reasons": split("""
            finance reports it that way; late events arrive for three days; the key is not
            unique; it halves the scan; the dashboard needs it by eight
        """),
        "todos": split("""
            backfill the missing partitions; tell finance about the restatement; add a
            uniqueness test; drop the temporary tables; explain the jump in returns; check the
            timezone of the source; refresh the extract; document the grain; re-run the holdout
            evaluation; ask the vendor for the raw files; anonymise the sample; archive the 2019
            loads
        """),
        "metrics": split("row count; null share; run time; forecast error"),
        "counted": split("rows; partitions; customers; orders"),
        "tools": split("sql sql; sql sql; preview path; run command; python code; job_status id"),
    },
    "support": {
        "things": split("""
            the refund; the double charge; the login loop; the missing invoice; the export; the
            address change; the delayed parcel; the broken coupon
        """),
        "symptoms": split("""
            was never confirmed; shows the wrong amount; is stuck; came back twice; upset the
            customer; does not reach the warehouse; blocks the account
        """),
        "options": split("""
            a full refund; store credit; a replacement; a manual invoice; escalation to tier
            two; a goodwill voucher; the standard template; a phone call; express shipping
        """),
        "reasons": split("""
            the customer has been with us for nine years; policy allows it once a year; the
            carrier admitted the fault; legal wants it in writing; it was our mistake
        """),
        "todos": split("""
            send the apology letter; confirm the new delivery date; refund the shipping fee;
            update the macro for double charges; call the customer back; merge the duplicate
            accounts; correct the VAT number; ask the carrier for proof of delivery; close the
            linked case; tell billing about the broken coupon; translate the reply; lock the old
            account
        """),
        "metrics": split("first response; handling time; queue length; satisfaction"),
        "counted": split("tickets; orders; customers; replies"),
        "tools": split("""
            get_ticket id; get_order id; search query; send_reply id text; open_file path; crm
            id
        """),
    },
    "research": {
        "things": split("""
            the ablation; the baseline; the scaling claim; the benchmark leak; the survey; the
            licence question; the replication; the cost model
        """),
        "symptoms": split("""
            does not replicate; contradicts the appendix; rests on one dataset; is quoted
            without a source; changed between versions; looks too good
        """),
        "options": split("""
            the 2023 protocol; the smaller model; a systematic review; bootstrap intervals; the
            preprint; the journal version; human raters; the public split; Markdown notes
        """),
        "reasons": split("""
            the code is public; reviewers asked for it; the effect is within noise otherwise;
            the authors corrected the table; we can afford only one run
        """),
        "todos": split("""
            contact the authors; check the licence of the dataset; add the missing citation;
            redo figure four; compare with the replication study; summarise the limitations;
            verify the quoted cost; archive the web pages; translate the abstract; compute the
            confidence intervals; reread the appendix; order the proceedings
        """),
        "metrics": split("accuracy; perplexity; cost per run; agreement"),
        "counted": split("papers; samples; runs; citations"),
        "tools": split("""
            web_search query; open_url path; open_url path; cite id; note path text; run command
        """),
    },
}
