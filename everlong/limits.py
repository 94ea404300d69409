"""Bounds that are not policy: limits of the server, and bounds of our own code, with their arithmetic.

Workflow code reads some of them. A change of those is a change of workflow code: stored and running
histories must still replay. Bounds that a user may want to change are in `policy` instead.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# A payload larger than this after compression goes to the blob store. A step of a list loop takes
# 0.8 KB of history if both of its payloads are offloaded, so 300 steps with inline results of this size
# take 1.2 MB. A PUT of fewer bytes is not worth its latency.
INLINE_BYTES_MAX: Final = 3 * KIB
# Compression is tried for payloads that may shrink to that: JSON shrinks 4 to 10 times.
INLINE_TRIAL_FACTOR: Final = 8

# Largest payload that stays inline while the store is down; the server accepts 2 MiB.
FALLBACK_BYTES_MAX: Final = 3 * MIB // 2
# All inline payloads of a task completion. The server terminates a workflow at 4 MB, and the commands
# around the payloads need room too.
COMPLETION_BYTES_MAX: Final = 3 * MIB
# The SDK encodes the payloads of a completion one after another, and a task has 10 s. After this time
# the remaining payloads stay inline if they fit.
COMPLETION_SECONDS_MAX: Final = 4.0

# Store calls of a workflow task, which has 10 s, are retried for about this time. A large object gets
# more time, at a rate that any store reaches.
STORE_TRY_SECONDS: Final = 2.5
STORE_BYTES_PER_SECOND_MIN: Final = MIB
# After that, payloads that fit stay inline for this time without a try. Then the store is tried again.
STORE_DOWN_SECONDS: Final = 5.0

# A codec header and metadata cost about 50 bytes, and a decode costs time. Compression has to save
# at least a tenth, and payloads below 256 bytes never do.
COMPRESS_BYTES_MIN: Final = 256
COMPRESS_RATIO_MAX: Final = 0.9

# Largest object that is written or decompressed. The server's limit for a payload is 2 MB; offloaded
# payloads may be larger, as long as a worker's memory holds several of them.
OBJECT_BYTES_MAX: Final = 256 * MIB

# Decoded size of all payloads of one call, by default. Payloads of at least the second size are decoded
# one after another, since each is in memory twice until it is complete.
DECODE_BYTES_MAX: Final = 2 * OBJECT_BYTES_MAX
DECODE_ALONE_BYTES_MIN: Final = 8 * MIB

# Arguments of continue-as-new and results of a draining run (mode="read") stay plain up to this size, so
# that the next run has no refs. A list loop that starts with 64 KiB and sends it at every step has 64
# steps until the server suggests continue-as-new (4 MiB of history), and 800 until the server terminates
# it (50 MiB). Larger arguments stay offloaded, and the next run drains too.
DRAIN_HANDOVER_BYTES_MAX: Final = 64 * KIB
# Time that a worker with mode="read" waits for a run's history before it writes: with the 0.8 s below
# and the 4 s for encoding, a task still ends within its 10 s. If the history is still unknown, values
# over 64 KiB go to the store as if the run had refs, and the history is read again after the second
# time. One such task adds at most 3 MiB to a history.
DRAIN_SECONDS_MAX: Final = 3.0
DRAIN_RETRY_SECONDS: Final = 30.0
# Histories that a worker reads for draining at a time, if more runs resume than prefetches are allowed.
DRAIN_READS_MAX: Final = 16

# More bytes than this are compressed or hashed in a thread: 256 KiB of agent content take about 2 ms,
# which would delay the other work of the event loop.
LOOP_BYTES_MAX: Final = 256 * KIB

# Memory of an encoder for one thread, so that it writes only new bytes: the newest payload of each
# growing list (a thread may have several), the newest single payloads (results that the next list will
# contain), and the places of chunks. An index entry takes about 350 bytes and stands for up to 16 KiB:
# 32,768 entries are 11 MiB.
ENCODER_LISTS_MAX: Final = 16
ENCODER_SINGLES_MAX: Final = 32
ENCODER_CHUNKS_MAX: Final = 32_768
# Payloads up to this size are recognised by their digest. So if a task times out while it writes them,
# its retry does not write them again.
ENCODER_REPEATS_MAX: Final = 1024
ENCODER_REPEAT_BYTES_MAX: Final = 256 * KIB
# Digests that are kept of a thread whose bytes were dropped.
ENCODER_REPEATS_KEPT: Final = 8
ENCODER_ENTRY_COST_BYTES: Final = 350
# Memory of the encoder for all threads of a process, by default. Beyond it, the bytes of the least
# recently used payloads are dropped, and their digests are kept, so that a thread that continues still
# refers to its packs. The rest is mostly the index of chunks: 20 KB for a thread after 20 steps, 100 to
# 300 KB after some hundreds. So 128 MiB suffice for 6,000 young threads, or 400 to 1,200 old ones.
# Beyond that whole threads are forgotten; each of them that continues writes one full payload.
ENCODER_BYTES_MAX: Final = 128 * MIB
ENCODER_BYTES_MIN: Final = MIB
# Forgotten threads that are recognised, to measure the cost of forgetting them: 10 MiB.
ENCODER_FORGOTTEN_MAX: Final = 65_536
# A pack that no payload has referred to for this time is not referred to again: a sweep may be about to
# delete it, and its grace period is at least a day.
ENCODER_SECONDS_MAX: Final = 3600.0
# The same holds for a pack that was not written or read for this time, however often payloads refer to
# it: a task that is retried for days refers to a pack that no history has, and a sweep deletes it at the
# end of its quarantine. So a thread writes one full payload a day.
ENCODER_PACK_SECONDS_MAX: Final = 24 * 3600.0

# Shorter equal runs of bytes are not worth an extent, which takes 10 bytes, 32 for a pack that is not
# named yet, and maybe a GET.
MATCH_BYTES_MIN: Final = KIB
# Mean size of content-defined chunks. They are only looked up where the bytes differ from the last
# payload, and a hit is extended until the bytes differ again, so they may be large.
CHUNK_BYTES_MEAN: Final = 16 * KIB
# Merging of packs; its bounds are derived in `codecs.pack_layout`. A payload needs at most this many
# packs that are not settled, itself included, and the settled ones: 8 for each 3 MiB, 64 in all.
PACKS_MAX: Final = 24
SETTLED_BYTES_MIN: Final = 384 * KIB
SETTLED_MAX: Final = 64
MERGE_LEVEL_BYTES: Final = 8 * KIB
MERGE_FACTOR: Final = 5
# Small packs are merged early if all of them together have at most this share of the new bytes.
ABSORB_RATIO: Final = 0.3
# A pack with a stream of at most this size is compressed with a dictionary: a run of bytes of an earlier
# pack, of the sizes below. At most `DICTIONARIES_MAX` packs depend on each other that way. For a real
# session of 453 steps this saves a sixth of the written bytes.
DICTIONARY_USE_BYTES_MAX: Final = 256 * KIB
DICTIONARY_BYTES_MIN: Final = KIB
DICTIONARY_BYTES_MAX: Final = 32 * KIB
DICTIONARIES_MAX: Final = 3
# If a payload uses a smaller share of a pack than this, the bytes are copied instead of referred to. So
# a cold read never decompresses more than 4 times the bytes that it needs.
SPARSE_RATIO: Final = 0.25
# Extents of a payload; if there are more, neighbours are written again as one, in groups of 8. Each
# result that is a pack of its own, and each change in the middle, adds two.
EXTENTS_MAX: Final = 512
EXTENTS_GROUP: Final = 8

# Operational state is an argument of every continue-as-new. 64 KiB is 1/32 of the server's 2 MB payload
# limit, and small enough for a person to read.
STATE_BYTES_MAX: Final = 64 * KIB
# While the store is down, the state also holds the entries that are not journalled yet: requests, votes,
# escalations and decisions of the approvals of one reply. A test checks this bound, no code does.
STATE_HELD_BYTES_MAX: Final = 176 * KIB

# Unread messages wait in operational state, so their size and number are bounded. Both are counted as
# JSON, in which a control character takes six bytes. A longer message waits as a ref.
MESSAGE_BYTES_MAX: Final = 8 * KIB
INBOX_BYTES_MAX: Final = 12 * KIB

# The calls of one reply wait in operational state until all of them have a result. At four bytes a
# character a call with its options takes up to 1.4 KiB while it waits for a person, with the key of its
# attempt and changed arguments, and 2.2 with its result and a fact: 20 take 44. With a full inbox, 4 KiB
# of tail, 2 of grants, 1 of votes and 1 of the rest that is 64.
TOOL_CALLS_MAX: Final = 20
CALL_NAME_CHARS_MAX: Final = 64
CALL_PREVIEW_CHARS_MAX: Final = 100
# Characters of a preview: as written, and as accepted by a reader.
PREVIEW_CHARS_MAX: Final = 40
PREVIEW_CHARS_READ_MAX: Final = 60
REASON_CHARS_MAX: Final = 160
FACT_BYTES_MAX: Final = 400
# Keys of expired facts that an entry names.
EXPIRED_KEYS_MAX: Final = 8
# All names of a tool's approvers together.
APPROVERS_BYTES_MAX: Final = 256
# People who may have to approve one call.
APPROVALS_NEEDED_MAX: Final = 8
# Patterns of a policy that ask for approvals.
APPROVAL_RULES_MAX: Final = 16
# Votes of all calls that wait, as JSON: a vote with a name of 20 characters takes 50 bytes.
VOTES_BYTES_MAX: Final = KIB
# Entries without a message that are not journalled yet, while the store is down. With more of them no
# vote is taken: each person may vote with a reason, and again after an escalation.
VOTE_NOTES_BYTES_MAX: Final = 32 * KIB
# Grants of a thread, as JSON: one takes 150 bytes, or 250 with the beginning of its arguments.
GRANTS_BYTES_MAX: Final = 2 * KIB
# Grants of an agent. A model call that needs an approval lists them, and reads those that this process
# does not have in its cache: 32 of 0.5 KB, 16 at a time, take two round trips.
AGENT_GRANTS_MAX: Final = 32
AGENT_GRANT_BYTES_MAX: Final = 8 * KIB
GRANT_SECONDS_MAX: Final = 365 * 24 * 3600.0
# Time to look for an agent's grants. If it takes longer, a person is asked.
GRANT_LOOKUP_SECONDS_MAX: Final = 5.0
# Arguments that a person has changed, as JSON: what the approvals page shows of a call.
EDIT_BYTES_MAX: Final = 32 * KIB
# Of these, what the model gets.
EDIT_SHOWN_BYTES_MAX: Final = 2 * KIB
# Result that a person reports for a call, as JSON: it stays in operational state until the next model
# call, so it has the size of a denial with its reason.
OUTCOME_RESULT_BYTES_MAX: Final = 512
# Time to check a decision, and to store a grant: the person waits, and so does a roll.
DECISION_SECONDS_MAX: Final = 30.0
# A larger tail is journalled before the thread waits or runs tools.
TAIL_BYTES_MAX: Final = 3 * KIB
# Changes of one `configure`, as JSON: the state has them until they are journalled.
CHANGES_BYTES_MAX: Final = KIB
# Decisions, changes, turns and messages that the state still knows, to recognise repeated requests.
DECIDED_MAX: Final = 32
CONFIGURED_MAX: Final = 4
ANSWERS_MAX: Final = 32
RECEIVED_MAX: Final = 16
# Updates that wait for an answer. The server allows 10 updates in flight for a workflow
# (history.maxInFlightUpdates), so 6 are left for decisions, messages and changes of the policy. Further
# callers follow the history, which has no such bound.
UPDATES_WAITING_MAX: Final = 4
# Samples of a thread's size, for a sparkline: 30 bytes each as JSON.
TREND_MAX: Final = 16

# Nesting of sub-agents: a thread that could start itself would have no end.
CHILD_DEPTH_MAX: Final = 4
# Characters of the parent's id in the id of a sub-agent's thread: Temporal accepts ids of 1,000 bytes.
CHILD_PARENT_CHARS_MAX: Final = 100
# After this time, the parent checks a sub-agent's thread that has not reported: it may have been
# terminated, and a terminated thread sends no report.
CHILD_CHECK_SECONDS: Final = 600.0
# The wait doubles each time: a sub-agent that waits for a person for weeks costs a task a day.
CHILD_CHECK_SECONDS_MAX: Final = 24 * 3600.0

# A run of at most this many events does not continue as new when the thread is idle: it is short.
IDLE_EVENTS_MAX: Final = 12

# A tool result or a reply, as JSON. 64 MiB is far more than a model reads, and a quarter of the largest
# object.
TEXT_BYTES_MAX: Final = 64 * MIB
# Part of a longer message that a model is shown: 8,000 tokens. The whole message is stored too.
SHOWN_BYTES_MAX: Final = 32 * KIB
# Contents of a conversation in one span, if recording of contents is on.
CONTENTS_BYTES_MAX: Final = 64 * KIB

# Entries up to which appends merge the segments of a journal. An entry with its message or its ref takes
# up to 0.8 KiB as JSON, so that is 26 KiB. With appends of one entry, an entry is written 3.5 times on
# average, and 6 times at most: when it is appended, and whenever its segment doubles.
SEGMENT_ENTRIES_MAX: Final = 32
# JSON of a segment, without the bodies before it. Segments that are written have some tens of KiB.
# Parsed JSON may take 20 times its bytes.
SEGMENT_JSON_BYTES_MAX: Final = 16 * MIB
# Segments that are folded at a time, once they are no longer merged: with steps of 2 entries, one step
# in 64 writes a second object. Until then each step refers to them again, at 40 bytes each.
FOLD_SEGMENTS: Final = 4
# Places that one fold refers to. Writing it again for every 4 segments makes 4.5 places a segment, and 3
# levels of folds reach a million entries.
FOLD_PLACES_MAX: Final = 32
FOLD_LEVELS_MAX: Final = 8
# Threads whose packs a journal may refer to: the thread that it was forked from, and that thread's
# sources.
SHARES_MAX: Final = 16

# A message up to this size stays inside its journal entry. A larger one is stored next to the segment,
# or in a pack of its own.
ENTRY_BODY_BYTES_MAX: Final = 512
# Results of one step that stay inside their entries until the next model call journals them, all
# together, as JSON. They are in the history twice: compressed, 1 KiB takes as much there as a pack and
# its two refs. Longer results are packs.
STEP_RESULTS_BYTES_MAX: Final = KIB

# Bodies that are read at the same time for a context: 16 GETs of 60 ms give 270 GETs a second.
STORE_READS_MAX: Final = 16

# A prefetch must end within a workflow task or two. The second bound is the prefetches at a time.
PREFETCH_SECONDS_MAX: Final = 30.0
PREFETCHES_MAX: Final = 128
# Resumes that wait for the state of their last worker. They occupy no prefetch: 200 resumes a second
# wait at the same time while the server takes 5 s to answer.
LOOKUPS_MAX: Final = 1024
LOOKUP_SECONDS_MAX: Final = 30.0
# Time that a replay waits for its history to be read: 256 events take some milliseconds, and the SDK
# considers an activation of 2 s a deadlock.
HISTORY_SECONDS_MAX: Final = 0.8

# Cache of a process for stored objects: in memory, and in a directory if one is configured. A pack of an
# agent's step has some KiB, so thousands of them fit.
CACHE_MEMORY_BYTES_MAX: Final = 64 * MIB
CACHE_DISK_BYTES_MAX: Final = 2048 * MIB
# A cache directory that is slower than this is not worth its use.
CACHE_SECONDS_MAX: Final = 0.5
# A prefetch must not evict from the cache the objects that it has fetched.
PREFETCH_BYTES_MAX: Final = CACHE_MEMORY_BYTES_MAX // 2

# Memory of `everlong serve`, whose clients decide which payloads it reads. First its cache. Then the
# stored bytes that its reads hold at the same time: enough for a payload of 64 MiB, or of 14 MiB if it
# uses a quarter of its sources. Then the bytes that one call decodes for the server itself: threads have
# a state of 64 KiB, and parsed JSON takes up to 20 times its bytes.
SERVER_CACHE_BYTES_MAX: Final = 16 * MIB
SERVER_READ_BYTES_MAX: Final = 80 * MIB
SERVER_DECODE_BYTES_MAX: Final = 8 * MIB

# Default of the policy's `heartbeat_seconds`, which has the arithmetic.
HEARTBEAT_SECONDS: Final = 5.0
# Heartbeats that an activity requests in each timeout, the first after half of it: an event loop that is
# blocked for up to half of the timeout costs no attempt. The SDK sends the first request at once. Then
# it sends the newest request 80% of the timeout (at most 60 s) after the last one that it sent.
HEARTBEATS_IN_TIMEOUT: Final = 2

# Default timeout of a model call or a tool.
CALL_SECONDS_MAX: Final = 600.0
# Attempts at one model call or tool. They count whatever ended them: an error, a time-out, the end of
# the worker. The back-off doubles from 1 s up to 30 s, so a call that fails at once is given up after
# about 4 minutes.
CALL_ATTEMPTS_MAX: Final = 12
# Once this attempt has failed, the thread is signalled: its listed status becomes `retrying`. Most
# failures are over by the second attempt, and a signal is a billed action.
RETRYING_ATTEMPT: Final = 3
RETRY_SECONDS_MAX: Final = 30.0
# Timeout of a team's own rule about approvals. If it takes longer, approval is required.
APPROVAL_RULE_SECONDS_MAX: Final = 10.0
# Logged part of the traceback of a failed tool or model.
TRACE_CHARS_MAX: Final = 8000
# Longest delay that a provider can request before the next call.
RETRY_AFTER_SECONDS_MAX: Final = 300.0
# Blocking tools at a time in one worker: the largest number of activities that a worker can be given. An
# OS thread is started only when a tool needs it. The SDK's default is 100 activities.
TOOL_THREADS_MAX: Final = 1000

# While the store is down, an activity without effects so far waits this long, and then frees its slot on
# the worker. The workflow schedules it again after a pause, which doubles; meanwhile the run may
# continue as new.
HOLD_SECONDS_MAX: Final = 20.0
HELD_PAUSE_SECONDS_MIN: Final = 10.0
HELD_PAUSE_SECONDS_MAX: Final = 600.0
HELD_REASON_CHARS_MAX: Final = 500
# An activity that has called a tool or a model keeps waiting, so that the call is not repeated: 30 days.
ACTIVITY_SECONDS_MAX: Final = 30 * 24 * 3600.0
STORE_RETRY_SECONDS_MAX: Final = 10.0

# Sticky timeout of workers that run only agents. After a kill it is most of a resume's time, and a
# saturated worker needs 2 to 3 s to take a task: with a shorter timeout, tasks move to other workers,
# which must replay (`make bench-sticky`). The SDK's default is 10 s.
STICKY_SECONDS: Final = 3.0
# Workflow tasks at a time on such a worker. With the SDK's 100, a worker resumes 100 threads at once
# after a crash, and each takes as long as all of them: 6.6 s of the 10 s that a task may take, with 200
# threads on 2 processors (`make bench-load`). With 20, each takes 1 to 2 s, and the last answer comes no
# later, since Python runs one task at a time. A replay of 230 events takes about 0.2 s, so 20 of them
# take 4 s.
WORKFLOW_TASKS: Final = 20
# Polls for workflow tasks at a time: one for threads that are not in memory, all others for those that
# are. So an overloaded worker accepts new threads only as fast as it finishes the tasks of its own. With
# the SDK's five polls, one task in four was the first of another thread, and one in five of the others
# timed out in the worker's queue; with 16 polls one in a hundred, with 20 one in a thousand (1,000
# threads at once).
WORKFLOW_POLLERS: Final = 20
# OS threads for those tasks. They wait only for the interpreter, so more threads only make it switch
# more often: 16 threads took a tenth more of a worker's CPU time.
WORKFLOW_THREADS: Final = 2

# Runs that a sweep reads at a time, and the bytes and payloads that it decodes of each: at most 8 times
# these bytes at once, unless a single payload is larger.
SWEEP_RUNS_MAX: Final = 8
SWEEP_DECODE_BYTES_MAX: Final = 16 * MIB
SWEEP_DECODES_MAX: Final = 16
# Cache of a sweep for stored objects: the packs of a thread's payloads share their sources.
SWEEP_CACHE_BYTES_MAX: Final = 32 * MIB
# Objects that are copied at a time, and their bytes together; a larger object is copied alone. Each is
# in memory twice, as it was read and as it is read back. An archive is copied through a file, in parts.
SWEEP_MOVES_MAX: Final = 8
SWEEP_MOVE_BYTES_MAX: Final = 32 * MIB
SWEEP_PART_BYTES: Final = 8 * MIB
# A move that took longer than this leaves the object where it is. A quarantine lasts four times as long,
# so that no copy is dropped while another process may still be about to delete its original.
SWEEP_MOVE_SECONDS_MAX: Final = 6 * 3600.0
# Longest time from the write of an object to its ref in a history: far more than any call or workflow
# task takes, retries included.
SWEEP_ON_ITS_WAY_SECONDS: Final = 3600.0
# Interval of progress reports during long work on the index.
SWEEP_PROGRESS_SECONDS: Final = 10.0
# Objects that a sweep lists in one stream before it lists the rest in 16 streams at once: a small store
# costs 10 requests instead of 32.
SWEEP_SCOUT_OBJECTS: Final = 10_000
# Objects of a listing that are added to the index together: a page of S3.
SWEEP_LIST_PAGE: Final = 1000
# Pause after a listing request without an answer. Each further one in a row makes it this much longer.
SWEEP_LIST_PAUSE_SECONDS: Final = 1.0
# A listing that takes longer than this is also saved in the store, in parts of so many objects: 2 MB
# each. A sweep that continues on another worker then lists at most 16 parts again, 800 requests.
SWEEP_LISTING_KEEP_SECONDS: Final = 60.0
SWEEP_LISTING_PART: Final = 50_000
# An interrupted sweep continues with a saved listing that is younger than this.
SWEEP_LISTING_SECONDS_MAX: Final = 48 * 3600.0
# Rows of one file of the index in the store, on average and at most: 2 MB and 8 MB. A file that claims
# to inflate to more than this is not read.
SWEEP_INDEX_ROWS: Final = 50_000
SWEEP_INDEX_ROWS_MAX: Final = 200_000
SWEEP_INDEX_BYTES_MAX: Final = 64 * MIB
# While histories are read the index is saved this often, and never for more than a tenth of the time.
SWEEP_SAVE_SECONDS: Final = 600.0
# One activity of a sweep ends after this time, and the next one continues. This is below the timeout of
# the activity, 24 hours.
SWEEP_ACTIVITY_SECONDS_MAX: Final = 20 * 3600.0
# Objects of one record of the log: 60 KiB as JSON.
SWEEP_BATCH: Final = 256
# Age at which records of moved objects are deleted, and the number of reports that are kept.
SWEEP_LOG_SECONDS: Final = 90 * 24 * 3600.0
SWEEP_REPORTS_MAX: Final = 50
# Records of the threads of each namespace. Beyond this number they are merged into one.
SWEEP_RECORDS_MAX: Final = 32

# Notices of a thread that the notifier does not have yet: the calls of one reply, and some limits. At
# most 250 bytes each, 6 KiB in all. A signal takes milliseconds, so there are rarely more than a few.
NOTICES_MAX: Final = 24
NOTICE_NAME_CHARS_MAX: Final = 32
# Part of a limit whose use is reported in advance.
BUDGET_SHARE: Final = 0.8
# Deliveries that the notifier keeps for sinks that fail, put off or collect: 0.6 KiB each as JSON,
# 1.2 MiB in all, which the codec compresses ten times and stores as one object. Beyond that the oldest
# is dropped, counted and logged.
NOTIFIER_QUEUE_MAX: Final = 2000
# Notifications of one activity: 30 KiB of arguments, which stay inline after compression.
NOTIFIER_BATCH_MAX: Final = 50
# Activities at a time for notifications that were not tried yet, and one more for each sink that has
# failed. If one sink hangs, each of the first takes as long as that sink's timeout: 4 x 50 in 10 s are
# 20 notifications a second.
NOTIFIER_ACTIVITIES_MAX: Final = 4
# Keys by which the notifier recognises notifications that a thread sends again: 35 bytes each.
NOTIFIER_SEEN_MAX: Final = 1000
# Events of a run of the notifier before it continues as new: a signal and its delivery are 8 events. The
# server accepts 10,000 signals of a run, and its default bound is 51,200 events.
NOTIFIER_EVENTS_MAX: Final = 4000
# Wait after a failed delivery: 2 s, doubled each time. A sink that is down for a day costs 150 actions.
NOTIFIER_RETRY_SECONDS_MIN: Final = 2.0
NOTIFIER_RETRY_SECONDS_MAX: Final = 600.0
# After this time a delivery is given up, counted and logged: a weekend.
NOTICE_SECONDS_MAX: Final = 72 * 3600.0
# One request to a sink, by default, and requests at a time to one sink.
NOTIFY_SECONDS: Final = 10.0
NOTIFY_REQUESTS_MAX: Final = 8
# After so many failures in a row, an activity makes no further request to that sink. Some are in flight
# by then, so a sink that hangs gets 15 at most.
NOTIFY_FAILURES_MAX: Final = 8
# After this time an activity begins no further request. One may take 90 s (a mail, 3 x 30 s), so the
# timeout of the activity is longer than both together.
NOTIFY_ROUND_SECONDS_MAX: Final = 60.0
NOTIFY_ACTIVITY_SECONDS_MAX: Final = 180.0
# Sinks of one configuration, and names in one of its lists.
NOTIFY_SINKS_MAX: Final = 16
NOTIFY_NAMES_MAX: Final = 1000
# Bytes of an answer of a sink that are read. Slack's repeats the message: 20 notifications with two
# values of buttons of 2,000 characters, a link of 3,000, and 600 more of 12 bytes each: 300 KB.
# A longer answer would count as a failure, and the message would be sent again.
NOTIFY_ANSWER_BYTES_MAX: Final = 512 * KIB
# Bytes of one configuration file.
NOTIFY_FILE_BYTES_MAX: Final = 256 * KIB
