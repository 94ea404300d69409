"""The bounds that are not policy: what the server enforces, and what keeps our own code bounded.

Each stands beside its arithmetic. What a user may want to change is in `policy` instead.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# A payload larger than this after compression goes to the blob store. The server kills a workflow
# for more than 4 MB in one task completion: 250 payloads of 16 KiB still fit.
INLINE_BYTES_MAX: Final = 16 * KIB

# A codec header and metadata cost about 50 bytes, and a decode costs time. Compression has to save
# at least a tenth, and payloads below 256 bytes never do.
COMPRESS_BYTES_MIN: Final = 256
COMPRESS_RATIO_MAX: Final = 0.9

# Refuse to inflate beyond this. The largest body is a tool result, and 256 MiB of plaintext is far
# over what any model reads; it also fits a worker's memory a few times over.
OBJECT_BYTES_MAX: Final = 256 * MIB

# Work on more bytes than this leaves the event loop: zstd-3 takes about 1 ms for 256 KiB.
THREAD_OFFLOAD_BYTES_MIN: Final = 256 * KIB

# Operational state rides in every continue-as-new. 64 KiB is 1/32 of the server's 2 MB payload
# limit, and small enough to be read by a person.
STATE_BYTES_MAX: Final = 64 * KIB

# An unread message waits in operational state, so it is small, and few of them wait at a time. Both
# are counted as JSON, in which a control character takes six bytes.
MESSAGE_BYTES_MAX: Final = 16 * KIB
INBOX_BYTES_MAX: Final = 24 * KIB

# Results of one turn wait in operational state too: as a ref with a preview, as a short message, or
# as the reason of a failure. At four bytes a character the largest takes 1.1 KiB, and 32 take 35.2.
# With a full inbox that is 60 of 64 KiB.
TOOL_CALLS_MAX: Final = 32
CALL_NAME_CHARS_MAX: Final = 64
PREVIEW_CHARS_MAX: Final = 60
REASON_CHARS_MAX: Final = 160

# A message up to this size stays inside its journal entry; a larger one is an object of its own.
ENTRY_BODY_BYTES_MAX: Final = 512

# Bodies read at once when a context is loaded: 16 GETs of 60 ms give 270 GETs a second.
STORE_READS_MAX: Final = 16

# An activity on a killed worker is noticed after this long. Heartbeats go out three times as often.
HEARTBEAT_SECONDS: Final = 5.0
# A model call or a tool that takes longer than this is tried again.
ACTIVITY_SECONDS_MAX: Final = 600.0
# A model or a tool that fails this often in a row is given up on. The back-off doubles from 1 s up to
# 30 s, so this is about 4 minutes.
RETRY_SECONDS_MAX: Final = 30.0
ACTIVITY_ATTEMPTS_MAX: Final = 12

# Where replays are cheap, waiting 10 s (the SDK's default) for a dead worker's sticky queue is most
# of a resume.
STICKY_SECONDS: Final = 1.0
