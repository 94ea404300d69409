"""What a sweep tells of itself: a span, and metrics."""

from everlong.models import SweepReport
from everlong.sweep.sweeping import Sweep
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import SWEEP


async def told(sweep: Sweep, telemetry: Telemetry, run_id: str = "") -> SweepReport:
    """Run a sweep, and tell how it went."""
    span = telemetry.spans.start(SWEEP, {}, run_id=run_id)
    with telemetry.spans.current(span):
        report = await sweep.run()
        outcome = "incomplete" if report.incomplete else "complete"
        if report.is_unfinished:
            outcome = "unfinished"
        span.set_attributes(
            {
                "everlong.sweep.outcome": outcome,
                "everlong.sweep.dry_run": report.dry_run,
                "everlong.sweep.runs": report.runs,
                "everlong.sweep.runs_read": report.runs_read,
                "everlong.sweep.packs_read": report.packs_read,
                "everlong.sweep.quarantined_bytes": report.quarantined.bytes,
                "everlong.sweep.restored_bytes": report.restored.bytes,
                "everlong.sweep.purged_bytes": report.purged.bytes,
            }
        )
    if not report.dry_run:
        meters = telemetry.meters
        meters.record("everlong.sweep.duration", report.seconds, {"outcome": outcome})
        meters.add("everlong.sweep.moved", report.quarantined.bytes, {"outcome": "quarantined"})
        meters.add("everlong.sweep.moved", report.restored.bytes, {"outcome": "restored"})
        meters.add("everlong.sweep.moved", report.purged.bytes, {"outcome": "purged"})
    return report
