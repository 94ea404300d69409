"""The bounds that are not policy: what the server enforces, and what keeps our own code bounded.

Workflow code decides by some of them, so a change of those is a change of workflow code: histories
that are stored or running have to replay. Each stands beside its arithmetic. What a user may want to
change is in `policy` instead.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# A payload larger than this after compression goes to the blob store. A step of a list loop takes
# 0.8 KB of history with both of its payloads offloaded, so 300 steps with results of just this size
# take 1.2 MB. A PUT for less is not worth its latency.
INLINE_BYTES_MAX: Final = 3 * KIB
# Compression is tried for what may become that small: JSON shrinks 4 to 10 times.
INLINE_TRIAL_FACTOR: Final = 8

# While the store is down a payload stays inline up to this; the server takes 2 MiB.
FALLBACK_BYTES_MAX: Final = 3 * MIB // 2
# All payloads of a task completion that stay inline. The server ends a workflow at 4 MB, and the
# commands around the payloads need room too.
COMPLETION_BYTES_MAX: Final = 3 * MIB
# The SDK encodes the payloads of a completion one after another, and a task has 10 s. After this long
# the rest stays inline where that fits.
COMPLETION_SECONDS_MAX: Final = 4.0

# The store is tried for about this long, then the caller does without: a workflow task has 10 s. A
# large object gets more, at a rate that any store reaches.
STORE_TRY_SECONDS: Final = 2.5
STORE_BYTES_PER_SECOND_MIN: Final = MIB
# After that, payloads that fit stay inline at once for this long, and then the store is tried again.
STORE_DOWN_SECONDS: Final = 5.0

# A codec header and metadata cost about 50 bytes, and a decode costs time. Compression has to save
# at least a tenth, and payloads below 256 bytes never do.
COMPRESS_BYTES_MIN: Final = 256
COMPRESS_RATIO_MAX: Final = 0.9

# Refuse to write, and to inflate, beyond this. The server's own limit for a payload is 2 MB; this
# leaves room for what the codec offloads, and fits a worker's memory a few times over.
OBJECT_BYTES_MAX: Final = 256 * MIB

# What the payloads of one call decode to together, by default. Those that are at least as large as the
# second figure are decoded one after another, since each is in memory twice until its payload is made.
DECODE_BYTES_MAX: Final = 2 * OBJECT_BYTES_MAX
DECODE_ALONE_BYTES_MIN: Final = 8 * MIB

# What a draining run (mode="read") hands to the next run by continue-as-new, or returns as its result,
# stays plain up to this, so that the next run holds no refs. A list loop that starts with 64 KiB and
# sends it at every step has 64 steps until the server suggests to continue as new (4 MiB of history),
# and 800 until the server ends it (50 MiB). Larger arguments stay offloaded: the next run drains too.
DRAIN_HANDOVER_BYTES_MAX: Final = 64 * KIB
# A worker with mode="read" waits so long for a run's history to be read before it writes: with the 0.8 s
# below and the 4 s for encoding, a task still ends within its 10 s. If the history is still unknown,
# values over 64 KiB go to the store as if the run held refs, and the history is read again after the
# second figure. One such task adds at most 3 MiB to a history.
DRAIN_SECONDS_MAX: Final = 3.0
DRAIN_RETRY_SECONDS: Final = 30.0
# Histories that a worker reads at a time for this, when more runs resume at once than prefetches take.
DRAIN_READS_MAX: Final = 16

# Compressing or hashing more bytes than this is done in a thread: for 256 KiB of agent content that
# takes about 2 ms, and the event loop has other threads to serve.
LOOP_BYTES_MAX: Final = 256 * KIB

# What an encoder remembers of a thread so that it writes only what is new: the newest payload of each
# of a few lists that grow (a thread may have several under way), the newest single payloads (results
# that the next list will hold), and where chunks lie. An entry of the index takes about 350 bytes and
# stands for up to 16 KiB: 32,768 are 11 MiB.
ENCODER_LISTS_MAX: Final = 16
ENCODER_SINGLES_MAX: Final = 32
ENCODER_CHUNKS_MAX: Final = 32_768
# Payloads of a moderate size are known again by their digest, so that a task which is tried again
# after it took too long to write them does not write them twice.
ENCODER_REPEATS_MAX: Final = 1024
ENCODER_REPEAT_BYTES_MAX: Final = 256 * KIB
# So many are left of a thread whose bytes were dropped.
ENCODER_REPEATS_KEPT: Final = 8
ENCODER_ENTRY_COST_BYTES: Final = 350
# Over all threads of a process, by default. Beyond it, the bytes of the payloads unused for longest are
# dropped, and digests of them are kept: a thread that comes back still points to its packs. What remains
# is mostly the index of chunks: 20 KB of a thread after 20 steps, 100 to 300 KB after some hundreds. So
# 128 MiB serve 6,000 young threads, or 400 to 1,200 old ones. Beyond that whole threads are forgotten,
# and each that comes back writes one payload whole.
ENCODER_BYTES_MAX: Final = 128 * MIB
ENCODER_BYTES_MIN: Final = MIB
# Forgotten threads that are known again, to say what forgetting them has cost: 10 MiB.
ENCODER_FORGOTTEN_MAX: Final = 65_536
# A pack that no payload has named for this long is not pointed to again: a sweep may be about to
# delete it, and its grace period is a day at least.
ENCODER_SECONDS_MAX: Final = 3600.0
# Nor is one that was not written or read for this long, however often it was named: a task that is
# tried again for days names a pack that no history has, and a sweep ends its quarantine some day. So a
# thread writes one payload whole a day.
ENCODER_PACK_SECONDS_MAX: Final = 24 * 3600.0

# Two runs of bytes that agree over less than this are not worth an extent, which takes 10 bytes, 32
# for a pack that is not named yet, and maybe a GET.
MATCH_BYTES_MIN: Final = KIB
# Chunks by content. They are only looked up where the bytes differ from the last payload, and a hit
# is extended to where the bytes differ again, so they may be large.
CHUNK_BYTES_MEAN: Final = 16 * KIB
# How packs are merged, and why that is bounded: see `codecs.pack_layout`. A payload needs at most this
# many packs that are not settled, itself included, and the settled ones: 8 for each 3 MiB, 64 in all.
PACKS_MAX: Final = 24
SETTLED_BYTES_MIN: Final = 384 * KIB
SETTLED_MAX: Final = 64
MERGE_LEVEL_BYTES: Final = 8 * KIB
MERGE_FACTOR: Final = 5
# Small packs are merged early where all of them hold at most this share of what is written anyway.
ABSORB_RATIO: Final = 0.3
# A pack with a stream of at most this is compressed with a dictionary: a run of an earlier pack, with so
# many bytes of it, and with so many dictionaries in a row. On a real session of 453 steps that saves a
# sixth of what is written.
DICTIONARY_USE_BYTES_MAX: Final = 256 * KIB
DICTIONARY_BYTES_MIN: Final = KIB
DICTIONARY_BYTES_MAX: Final = 32 * KIB
DICTIONARIES_MAX: Final = 3
# A pack of which a payload uses less than this is copied from instead of pointed to, so a cold read
# never inflates over 4 times the bytes that it needs.
SPARSE_RATIO: Final = 0.25
# Runs that a payload may consist of; with more, neighbours are written again as one, in groups of 8.
# They come of results that are packs of their own, and of changes in the middle: two of each.
EXTENTS_MAX: Final = 512
EXTENTS_GROUP: Final = 8

# Operational state rides in every continue-as-new. 64 KiB is 1/32 of the server's 2 MB payload
# limit, and small enough to be read by a person.
STATE_BYTES_MAX: Final = 64 * KIB
# While the store is away, what the journal has yet to get is carried in the state as well: what was
# asked, passed on and decided about the calls of one reply. No code checks it: a test does.
STATE_HELD_BYTES_MAX: Final = 144 * KIB

# An unread message waits in operational state, so it is small, and few of them wait at a time. Both
# are counted as JSON, in which a control character takes six bytes. A longer message waits as a ref.
MESSAGE_BYTES_MAX: Final = 8 * KIB
INBOX_BYTES_MAX: Final = 12 * KIB

# The calls of one reply wait in operational state until all of them have a result. At four bytes a
# character a call with its options takes up to 1.2 KiB while it waits for a person, and 2.2 with its
# result and a fact: 20 take 44. With a full inbox, 4 KiB of tail and 2 of the rest that is 62 of 64.
TOOL_CALLS_MAX: Final = 20
CALL_NAME_CHARS_MAX: Final = 64
CALL_PREVIEW_CHARS_MAX: Final = 100
# Characters of a preview that are written, and that a reader accepts.
PREVIEW_CHARS_MAX: Final = 40
PREVIEW_CHARS_READ_MAX: Final = 60
REASON_CHARS_MAX: Final = 160
FACT_BYTES_MAX: Final = 400
# Of facts that have expired, the keys that are noted.
EXPIRED_KEYS_MAX: Final = 8
# Names of those who may decide about a tool's calls, all together.
APPROVERS_BYTES_MAX: Final = 256
# A tail of more than this is journalled before the thread waits or runs tools.
TAIL_BYTES_MAX: Final = 3 * KIB
# What `configure` may change at once, as JSON: it is noted in the state.
CHANGES_BYTES_MAX: Final = KIB
# Approvals and turns that are remembered after their end, to say so when they are asked for.
DECIDED_MAX: Final = 32
CONFIGURED_MAX: Final = 4
ANSWERS_MAX: Final = 32
RECEIVED_MAX: Final = 16
# Callers that wait for an answer by the update that they sent. The server allows 10 updates in flight
# for a workflow (history.maxInFlightUpdates), so 6 are left for decisions, messages and changes of the
# policy. Further callers follow the history, which has no such bound.
UPDATES_WAITING_MAX: Final = 4
# Sizes that a thread remembers of itself, for a sparkline: 30 bytes each as JSON.
TREND_MAX: Final = 16

# Sub-agents of sub-agents: a thread that could start itself would have no end.
CHILD_DEPTH_MAX: Final = 4
# Of its parent's id, what a sub-agent's thread has in its own: Temporal takes ids of 1,000 bytes.
CHILD_PARENT_CHARS_MAX: Final = 100
# A sub-agent's thread that has not reported is asked again after this long: it may have been
# terminated, and then nobody else would say so.
CHILD_CHECK_SECONDS: Final = 600.0
# The wait doubles each time: a sub-agent that waits for a person for weeks costs a task a day.
CHILD_CHECK_SECONDS_MAX: Final = 24 * 3600.0

# A run of at most this many events is not rolled when the thread goes idle: it is short already.
IDLE_EVENTS_MAX: Final = 12

# A tool result or a reply, as JSON. 64 MiB is far over what a model reads, and a quarter of what an
# object may hold.
TEXT_BYTES_MAX: Final = 64 * MIB
# What a model is shown of a message that is longer; the whole is stored too. 8,000 tokens.
SHOWN_BYTES_MAX: Final = 32 * KIB
# What one span may hold of a conversation, where that is switched on.
CONTENTS_BYTES_MAX: Final = 64 * KIB

# Entries up to which appends merge the segments of a journal. An entry with its message or its ref
# takes up to 0.8 KiB as JSON, so that is 26 KiB. With appends of one an entry is written 3.5 times in
# the mean, and 6 at most: when it comes, and whenever its segment doubles.
SEGMENT_ENTRIES_MAX: Final = 32
# The JSON of a segment, without the bodies before it. Written ones have some tens of KiB. Parsed, JSON
# may take 20 times its bytes.
SEGMENT_JSON_BYTES_MAX: Final = 16 * MIB
# Segments that are not merged any more are folded, so many at a time: with steps of 2 entries, one
# step in 64 writes a second object. Until then each step names them again, at 40 bytes each.
FOLD_SEGMENTS: Final = 4
# Places that one fold leads to. Writing it again for each 4 segments comes to 4.5 places a segment; and
# 3 levels of folds lead to a million entries.
FOLD_PLACES_MAX: Final = 32
FOLD_LEVELS_MAX: Final = 8
# Threads whose packs a journal may point into: the one that it was forked from, and those before.
SHARES_MAX: Final = 16

# A message up to this size stays inside its journal entry; a larger one lies beside the segment, or is
# a pack of its own.
ENTRY_BODY_BYTES_MAX: Final = 512
# Results of one step that stay inside their entries until the next model call journals them, all
# together, as JSON. They pass through history twice: compressed, 1 KiB takes as much there as a pack and
# its two refs. Longer results are packs.
STEP_RESULTS_BYTES_MAX: Final = KIB

# Bodies read at once when a context is loaded: 16 GETs of 60 ms give 270 GETs a second.
STORE_READS_MAX: Final = 16

# A prefetch has to end within a workflow task or two. At most so many at a time.
PREFETCH_SECONDS_MAX: Final = 30.0
PREFETCHES_MAX: Final = 128
# Resumes that wait to learn what became of their last worker. They hold no prefetch: 200 resumes a
# second wait at the same time while the server takes 5 s to answer.
LOOKUPS_MAX: Final = 1024
LOOKUP_SECONDS_MAX: Final = 30.0
# A replay waits so long for its history to be read: 256 events take some milliseconds, and the SDK
# takes an activation of 2 s for a deadlock.
HISTORY_SECONDS_MAX: Final = 0.8

# What a process keeps of the store: in memory, and in a directory where one is named. A pack of an
# agent's step has some KiB, so this is thousands of them.
CACHE_MEMORY_BYTES_MAX: Final = 64 * MIB
CACHE_DISK_BYTES_MAX: Final = 2048 * MIB
# A cache directory that is slower than this is as good as none.
CACHE_SECONDS_MAX: Final = 0.5
# A prefetch must not push out of the cache what it has fetched itself.
PREFETCH_BYTES_MAX: Final = CACHE_MEMORY_BYTES_MAX // 2

# Memory of `everlong serve`, whose clients decide what it reads: its cache; stored bytes that its reads
# hold at the same time, enough for a payload of 64 MiB, or of 14 with sources that it uses a quarter of;
# and what one call decodes for the server itself. Threads have a state of 64 KiB, and JSON takes up to
# 20 times its bytes once it is parsed.
SERVER_CACHE_BYTES_MAX: Final = 16 * MIB
SERVER_READ_BYTES_MAX: Final = 80 * MIB
SERVER_DECODE_BYTES_MAX: Final = 8 * MIB

# Default of the policy's `heartbeat_seconds`, where the arithmetic is.
HEARTBEAT_SECONDS: Final = 5.0
# An activity asks for a heartbeat twice in each timeout, for the first time after half of it: an event
# loop that is blocked for up to half of the timeout costs no attempt. The SDK sends the first request at
# once and then the newest one, 80% of the timeout (at most 60 s) after the last that it sent.
HEARTBEATS_IN_TIMEOUT: Final = 2

# A model call or a tool that takes longer than this counts as failed.
CALL_SECONDS_MAX: Final = 600.0
# Attempts at one model call or tool, whatever ended the earlier ones: an error, a time-out, the end
# of the worker. The back-off doubles from 1 s up to 30 s: what fails at once is given up on after
# about 4 minutes.
CALL_ATTEMPTS_MAX: Final = 12
RETRY_SECONDS_MAX: Final = 30.0
# A team's own rule about approvals; one that takes longer is answered by asking a person.
APPROVAL_RULE_SECONDS_MAX: Final = 10.0
# Of the trace of a tool or model that failed, what is logged.
TRACE_CHARS_MAX: Final = 8000
# A provider that asks for more patience than this gets another call all the same.
RETRY_AFTER_SECONDS_MAX: Final = 300.0
# Tools that block, at the same time in one worker: as many as the activities that a worker may be given.
# An OS thread is started only when a tool needs it. The SDK's default is 100 activities.
TOOL_THREADS_MAX: Final = 1000

# While the store is down, an activity that has done nothing yet waits this long, then frees its slot
# on the worker. The workflow tries again after a pause, which doubles, and rolls meanwhile.
HOLD_SECONDS_MAX: Final = 20.0
HELD_PAUSE_SECONDS_MIN: Final = 10.0
HELD_PAUSE_SECONDS_MAX: Final = 600.0
HELD_REASON_CHARS_MAX: Final = 500
# One that has run a tool or a model waits on, so that it need not run that again: 30 days.
ACTIVITY_SECONDS_MAX: Final = 30 * 24 * 3600.0
STORE_RETRY_SECONDS_MAX: Final = 10.0

# The sticky timeout of workers that run nothing but agents. After a kill it is most of a resume, and a
# saturated worker needs 2 to 3 s to take a task: with less, tasks move to other workers, which have to
# replay (`make bench-sticky`). The SDK's default is 10 s.
STICKY_SECONDS: Final = 3.0
# Workflow tasks at a time on such a worker. The SDK's 100 resume 100 threads at once after a crash, and
# each then takes as long as all of them: 6.6 s of the 10 s that a task may take, with 200 threads on 2
# processors (`make bench-load`). With few it is 1 to 2 s, and the last answer comes no later: Python
# runs one at a time. A replay of 230 events takes about 0.2 s, so twenty of them take 4 s.
WORKFLOW_TASKS: Final = 20
# Polls for workflow tasks at a time: one for threads that are not in memory, all others for those that
# are. When more threads have work than the worker can do, it so takes up new ones only as fast as it
# gets on with those that it has. With the SDK's five polls, one task in four was the first of another
# thread, and one in five of the others timed out in the worker's queue; with 16 polls one in a hundred,
# with 20 one in a thousand (1,000 threads at once).
WORKFLOW_POLLERS: Final = 20
# OS threads for those tasks. They wait for nothing but the interpreter, so more of them only make it
# switch more often: 16 of them took a tenth more of a worker's CPU time.
WORKFLOW_THREADS: Final = 2

# Runs that a sweep reads at a time, and payloads of them that it decodes: plain bytes at once, 8 times
# this at the most, unless a single payload has more.
SWEEP_RUNS_MAX: Final = 8
SWEEP_DECODE_BYTES_MAX: Final = 16 * MIB
SWEEP_DECODES_MAX: Final = 16
# What a sweep keeps of the store while it reads: the packs of a thread's payloads share their sources.
SWEEP_CACHE_BYTES_MAX: Final = 32 * MIB
# Objects that are copied at a time, and what they have together; a larger one goes alone. Each is in
# memory twice, as it was read and as it is read back; an archive goes by way of a file, in parts.
SWEEP_MOVES_MAX: Final = 8
SWEEP_MOVE_BYTES_MAX: Final = 32 * MIB
SWEEP_PART_BYTES: Final = 8 * MIB
# A move that took longer than this leaves the object where it is. A quarantine has four times as long,
# so that no copy is dropped while somebody may still be about to delete what it was made of.
SWEEP_MOVE_SECONDS_MAX: Final = 6 * 3600.0
# What is written may be named this much later: far more than any call or workflow task takes, retries
# included.
SWEEP_ON_ITS_WAY_SECONDS: Final = 3600.0
# Interval of progress reports during long work on the index.
SWEEP_PROGRESS_SECONDS: Final = 10.0
# Objects that a sweep lists in one stream before it lists the rest in 16 at once: a small store costs
# 10 requests, and not 32.
SWEEP_SCOUT_OBJECTS: Final = 10_000
# Objects of a listing that go into the index together: a page of S3.
SWEEP_LIST_PAGE: Final = 1000
# Before a range is listed on after the store did not answer; each time in a row this much longer.
SWEEP_LIST_PAUSE_SECONDS: Final = 1.0
# A listing that takes longer than this is kept in the store too, in parts of so many objects: 2 MB
# each. A sweep that goes on elsewhere then lists at most 16 parts again, 800 requests.
SWEEP_LISTING_KEEP_SECONDS: Final = 60.0
SWEEP_LISTING_PART: Final = 50_000
# A sweep that was cut off goes on with a listing that began less than this before.
SWEEP_LISTING_SECONDS_MAX: Final = 48 * 3600.0
# Rows of one file of the index in the store, on average and at most: 2 MB and 8 MB. A file that claims
# to inflate to more than this is not read.
SWEEP_INDEX_ROWS: Final = 50_000
SWEEP_INDEX_ROWS_MAX: Final = 200_000
SWEEP_INDEX_BYTES_MAX: Final = 64 * MIB
# While histories are read the index is saved this often, and never for more than a tenth of the time.
SWEEP_SAVE_SECONDS: Final = 600.0
# One activity of a sweep ends after this long, and the next one goes on. Both times are below the
# timeout of the activity, 24 hours.
SWEEP_ACTIVITY_SECONDS_MAX: Final = 20 * 3600.0
# Objects of one record of the log: 60 KiB as JSON.
SWEEP_BATCH: Final = 256
# A record of what was taken stays this long, and so many reports stay.
SWEEP_LOG_SECONDS: Final = 90 * 24 * 3600.0
SWEEP_REPORTS_MAX: Final = 50
# Records of which threads are whose. Beyond this many they are merged into one.
SWEEP_RECORDS_MAX: Final = 32
