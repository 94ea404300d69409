"""Wrong uses of the command: what users mistype, misplace or do not have.

Each runs against one server where `ops-7` has answered, `ops-9` has a call that waits for approval
({approval}), `ops-5` has one that was approved ({decided}), and `ops-3` is stopped. {empty} is an empty
directory.
"""

from typing import Final, NamedTuple


class WrongUse(NamedTuple):
    """A command line that fails, and the environment that it differs by."""

    arguments: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


def _use(*arguments: str, **env: str) -> WrongUse:
    return WrongUse(arguments, tuple(env.items()))


WRONG_USES: Final = (
    # The command line.
    _use("thraeds"),
    _use("send", "ops-7"),
    _use("send", "ops-7", "restart", "the", "api"),
    _use("send", "ops-7", "hi", "--agnet", "ops"),
    _use("send", "ops-7", "hi", "--timeout", "5minuets"),
    _use("threads", "--limit", "5000"),
    _use("threads", "--sort", "-stord"),
    _use("threads", "--status", "puased"),
    _use("threads", "--cursor", "here"),
    _use("show", "ops-7", "--at", "last"),
    _use("diff", "ops-7", "2"),
    _use("archive", "ops-7", "--then", "delete"),
    _use("archive", "ops-7", "--export", "{empty}"),
    _use("sweep", "--every", "daily"),
    _use("sweep", "--every", "6h", "--dry-run"),
    _use("sweep", "--retention", "payload=soon"),
    _use("sweep", "--quarantine", "lst"),
    _use("sweep", "v1/abc.pack"),
    # SQL.
    _use("query"),
    _use("query", "--run", "cost"),
    _use("query", "select * form entries"),
    _use("query", "select * from entires"),
    _use("query", "select toll from entries"),
    _use("query", "delete from entries"),
    # Limits.
    _use("limits", "ops-7", "step_max=5"),
    _use("limits", "ops-7", "steps_max", "500"),
    _use("limits", "ops-7", "steps_max=many"),
    _use("limits", "ops-7", "steps_max=0"),
    _use("limits", "ops-7", "on_limit=explode"),
    _use("limits", "ops-7", "idle_seconds=5x"),
    # Threads.
    _use("show", "osp-7"),
    _use("send", "ops-8", "hi"),
    _use("send", "ops-7", "hi", "--agent", "opz"),
    _use("send", "ops-10", "hi", "--agent", "opz", "--timeout", "5s"),
    _use("send", "ops-7", ""),
    _use("send", "ops-3", "hi"),
    _use("journal", "ops-7", "--from", "99"),
    _use("runs", "ops-7", "--cursor", "yesterday"),
    _use("fork", "ops-7", "99", "ops-77"),
    _use("fork", "ops-7", "2", "ops-9"),
    _use("fork", "ops-7", "2", "ops\n77"),
    _use("revive", "ops-7", "ops-77"),
    _use("revive", "ops-7", "ops-77", "--archive", "2026-01-01"),
    _use("archive", "osp-7"),
    # Approvals.
    _use("approve", "ops-7"),
    _use("approve", "ops-9", "1-1-0000"),
    _use("approve", "ops-9", "{approval}", "--by", "eve"),
    _use("deny", "ops-5", "{decided}", "--by", "ann"),
    # Settings.
    _use("threads", TEMPORAL_ADDRESS="127.0.0.1:1"),
    _use("threads", TEMPORAL_NAMESPACE="prod"),
    _use("show", "ops-7", TEMPORAL_NAMESPACE="prod"),
    _use("show", "ops-7", EVERLONG_STORE=""),
    _use("show", "ops-7", EVERLONG_STORE="{empty}/blobs"),
    _use("show", "ops-7", EVERLONG_STORE="s4://bucket"),
    _use("journal", "ops-7", EVERLONG_STORE="file://{empty}/blobs"),
    _use("show", "ops-7", EVERLONG_KEYS="secret"),
    _use("show", "ops-7", EVERLONG_INLINE_BYTES_MAX="3KiB"),
    _use("sweep", EVERLONG_RETENTION="payloads=1d"),
    _use("worker", "ops"),
    _use("worker", "everlong.demo:opz"),
    _use("worker", "ops_app:agent"),
    _use("serve", "--host", "0.0.0.0"),
    _use("serve", "--codec", "acme.codecs"),
)
