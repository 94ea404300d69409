"""What can be asked of threads: plain async functions, which every face of Everlong calls.

All take a client first. Those that read the store take `packs` too: the plugin's, or
`everlong.storage.opening.open_packs(url)`.
"""

from everlong.admin.service.asking import (
    SCAN_ENTRIES,
    answer,
    answer_to,
    ask,
    wait_for_answer,
    wait_for_status,
)
from everlong.admin.service.attributes import set_up
from everlong.admin.service.controlling import (
    compact,
    configure,
    decide,
    pause,
    stop,
    unpause,
)
from everlong.admin.service.doctoring import examine
from everlong.admin.service.findings import Finding
from everlong.admin.service.folding import Totals
from everlong.admin.service.forking import fork
from everlong.admin.service.past import ThreadDiff, ThreadView, diff, state_at
from everlong.admin.service.sending import send
from everlong.admin.service.sizes import ThreadSize, size
from everlong.admin.service.watching import (
    WORKER_SECONDS_MAX,
    arguments_of,
    journal,
    journal_of,
    messages,
    pending,
    status,
)

__all__ = [
    "SCAN_ENTRIES",
    "WORKER_SECONDS_MAX",
    "Finding",
    "ThreadDiff",
    "ThreadSize",
    "ThreadView",
    "Totals",
    "answer",
    "answer_to",
    "arguments_of",
    "ask",
    "compact",
    "configure",
    "decide",
    "diff",
    "examine",
    "fork",
    "journal",
    "journal_of",
    "messages",
    "pause",
    "pending",
    "send",
    "set_up",
    "size",
    "state_at",
    "status",
    "stop",
    "unpause",
    "wait_for_answer",
    "wait_for_status",
]
