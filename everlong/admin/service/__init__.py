"""What can be asked of threads: plain async functions, which every face of Everlong calls.

All take a client first. Those that read the store take `packs` too: the plugin's, or
`everlong.storage.opening.open_packs(url)`.
"""

from everlong.admin.approvals import Waiting, WaitingPage, waiting, waiting_in
from everlong.admin.entries import (
    ENTRIES_MAX,
    SLICE_CHARS_MAX,
    BodySlice,
    EntryPage,
    EntrySummary,
    Form,
    entry_body,
    entry_download,
    entry_page,
)
from everlong.admin.fleet import FleetView, StoreHealth, fleet, store_health
from everlong.admin.overview import Gauge, StateSizes, ThreadOverview, overview
from everlong.admin.preview import Action, Preview, preview
from everlong.admin.series import Point, Series, series
from everlong.archive import Manifest
from everlong.client.archives import (
    Archived,
    ArchivePage,
    ArchivePlan,
    Then,
    archive,
    archive_plan,
    archives,
    export_archive,
)
from everlong.client.control import (
    compact,
    configure,
    decide,
    note,
    pause,
    stop,
    unpause,
)
from everlong.client.delivery import send
from everlong.client.diagnosis import Diagnosis, diagnose
from everlong.client.due import Due, archive_due, preserve
from everlong.client.fork import fork
from everlong.client.progress import Progress
from everlong.client.query_cache import keep_answers
from everlong.client.restore import revive
from everlong.client.runs import RUNS_MAX, RunPage, RunRow, runs, ui_url
from everlong.client.search_attributes import set_up
from everlong.client.size import ThreadSize, size
from everlong.client.status import (
    WORKER_SECONDS_MAX,
    arguments_of,
    journal_of,
    pending,
    status,
)
from everlong.client.sweeps import (
    last_sweep,
    quarantined,
    restore_quarantined,
    schedule_sweeps,
    sweep,
    sweep_interval_seconds,
    unschedule_sweeps,
)
from everlong.client.threads import (
    CURSOR_CHARS_MAX,
    PAGE_LIMIT_MAX,
    TEXT_CHARS_MAX,
    Directory,
    Sort,
    ThreadPage,
)
from everlong.client.time_travel import (
    Past,
    ThreadDiff,
    ThreadView,
    archive_of,
    diff,
    journal,
    messages,
    state_at,
)
from everlong.client.visibility import ThreadRow, read_rows
from everlong.client.wait import (
    SCAN_ENTRIES,
    answer,
    answer_to,
    ask,
    wait_for_answer,
    wait_for_progress,
    wait_for_status,
)
from everlong.doctor.checks import examine
from everlong.doctor.drain import DrainReport, HoldingCount, count_holdings
from everlong.doctor.findings import Finding
from everlong.models import Totals
from everlong.queries import LIBRARY, Bounds, NamedQuery
from everlong.queries.query import QueryRead, QueryResult, named_query, query
from everlong.queries.sources import Reach

__all__ = [
    "CURSOR_CHARS_MAX",
    "ENTRIES_MAX",
    "LIBRARY",
    "PAGE_LIMIT_MAX",
    "RUNS_MAX",
    "SCAN_ENTRIES",
    "SLICE_CHARS_MAX",
    "TEXT_CHARS_MAX",
    "WORKER_SECONDS_MAX",
    "Action",
    "ArchivePage",
    "ArchivePlan",
    "Archived",
    "BodySlice",
    "Bounds",
    "Diagnosis",
    "Directory",
    "DrainReport",
    "Due",
    "EntryPage",
    "EntrySummary",
    "Finding",
    "FleetView",
    "Form",
    "Gauge",
    "HoldingCount",
    "Manifest",
    "NamedQuery",
    "Past",
    "Point",
    "Preview",
    "Progress",
    "QueryRead",
    "QueryResult",
    "Reach",
    "RunPage",
    "RunRow",
    "Series",
    "Sort",
    "StateSizes",
    "StoreHealth",
    "Then",
    "ThreadDiff",
    "ThreadOverview",
    "ThreadPage",
    "ThreadRow",
    "ThreadSize",
    "ThreadView",
    "Totals",
    "Waiting",
    "WaitingPage",
    "answer",
    "answer_to",
    "archive",
    "archive_due",
    "archive_of",
    "archive_plan",
    "archives",
    "arguments_of",
    "ask",
    "compact",
    "configure",
    "count_holdings",
    "decide",
    "diagnose",
    "diff",
    "entry_body",
    "entry_download",
    "entry_page",
    "examine",
    "export_archive",
    "fleet",
    "fork",
    "journal",
    "journal_of",
    "keep_answers",
    "last_sweep",
    "messages",
    "named_query",
    "note",
    "overview",
    "pause",
    "pending",
    "preserve",
    "preview",
    "quarantined",
    "query",
    "read_rows",
    "restore_quarantined",
    "revive",
    "runs",
    "schedule_sweeps",
    "send",
    "series",
    "set_up",
    "size",
    "state_at",
    "status",
    "stop",
    "store_health",
    "sweep",
    "sweep_interval_seconds",
    "ui_url",
    "unpause",
    "unschedule_sweeps",
    "wait_for_answer",
    "wait_for_progress",
    "wait_for_status",
    "waiting",
    "waiting_in",
]
