"""Held-out phrases for decisions and open asks.

They were written after the cues of compaction were final, and no cue was changed for them: their
survival estimates that of any phrase that the cues were not written for.
"""

from bench.evidence_phrases import Forms, lines

UNSEEN = Forms(
    decisions_by_user=lines("""
        {x}. Final.
        After a long night we are all in on {x}.
        {who} and I shook hands on {x}.
        Kill {y}, keep {x}.
        Consider {y} dead.
        We pay for {x}, so we use {x}.
        The board wants {x}; no discussion.
        You may use {x}. You may not use {y}.
        My call: {x}.
        Between {x} and {y} I take the former.
        {y} was a mistake and goes away.
        We bought {x} yesterday, which closes that question.
        Just do {x}.
        {x} gets the nod from {who}.
        Whatever happens, {y} stays out of production.
        As of this week {x} is our default.
        Architecture review is over: {x}.
        Let {y} go.
        Same as last year: {x}.
        {who} overruled me, so {x}.
        """),
    decisions_by_agent=lines("""
        {x} wins on every count, so I built it that way.
        The implementation now relies on {x}; {y} is gone.
        Following your hint I replaced {y} by {x}.
        I settled the question by taking {x}.
        {who} was clear about this: {x}.
        Both would work; {x} is simpler, hence {x}.
        Rationale for {x}: {why}.
        I turned {y} down, as {why}.
        Given that {why}, {x} was the only sensible way.
        From here on the code assumes {x}.
        Chosen approach: {x}.
        {y} did not survive the comparison, {x} did.
        We are committed to {x} now.
        I resolved the conflict in favour of {x}.
        By agreement with {who}: {x}.
        """),
    asks_by_user=lines("""
        While you are at it, {do}.
        Then {do}.
        {who} would be grateful if you could {do}.
        I keep forgetting to {do}, take that over from me.
        Has anybody managed to {do}?
        Any news on the plan to {do}?
        It bugs me that nobody managed to {do}.
        High on my wish list: {do}.
        Make sure to {do} before the audit.
        Tomorrow, first thing: {do}.
        What would you need in order to {do}?
        If time permits, {do}.
        The second half of the job is to {do}.
        Also: {do}.
        We promised {who} that we would {do}.
        """),
    asks_by_agent=lines("""
        My hands are tied until {who} signs; after that I can {do}.
        I have put off the request to {do}.
        There was no time to {do}.
        To finish, one has to {do}.
        One item stays on the list: {do}.
        I would need write access to {do}.
        Half done: {do}.
        May I {do}?
        It is up to {who} now to {do}.
        The ticket to {do} has not moved.
        Tell me whether I am supposed to {do}.
        Postponed until the maintenance window: {do}.
        What is missing: {do}.
        {who} promised to get back to us, then I can {do}.
        I have not looked at it: {do}.
        """),
)
