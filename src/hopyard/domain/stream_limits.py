"""How long a server lets the streams of a replica become."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.run import RunSpec

OUTPUT_STREAMS = ("stdout", "stderr")
METRIC_STREAMS = ("metrics", "tensorboard")
REPORT_STREAMS = (*METRIC_STREAMS, "events", "system")
STREAMS = (*OUTPUT_STREAMS, *REPORT_STREAMS, "journal")
JOURNAL_SLACK_BYTES = 2**20  # lines that say what was left out
MAX_JOURNAL_BYTES = 2**30  # of a study: a later driver reads all of it


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """output_bytes: of each of stdout and stderr, 0 is no limit. reports_bytes: of each stream of reports, 0
    is no limit. journal_bytes: of the journal, which studies alone have."""

    output_bytes: int = 0
    reports_bytes: int = 0
    journal_bytes: int = MAX_JOURNAL_BYTES

    def for_run(self, spec: RunSpec) -> StreamLimits:
        """Where the run has limits of its own, the smaller ones hold."""
        return StreamLimits(
            min(filter(None, (self.output_bytes, spec.max_output_bytes)), default=0),
            min(filter(None, (self.reports_bytes, spec.max_metrics_bytes)), default=0),
            0 if spec.study is None else self.journal_bytes,
        )

    def max_sent_bytes(self, stream: str) -> int | None:
        """How much of a stream a replica sends at most: its beginning up to the limit, and a quarter of the
        limit of what follows. None where it has no limit."""
        if stream not in OUTPUT_STREAMS and stream not in REPORT_STREAMS:
            return self.journal_bytes + JOURNAL_SLACK_BYTES
        limit = self.output_bytes if stream in OUTPUT_STREAMS else self.reports_bytes
        return limit + limit // 4 + JOURNAL_SLACK_BYTES if limit else None


NO_LIMITS = StreamLimits()
