"""The limits of a server on the lengths of a replica's streams."""

from __future__ import annotations

from hopyard.backports import dataclass
from hopyard.domain.media import MAX_INDEX_BYTES
from hopyard.domain.run import RunSpec

OUTPUT_STREAMS = ("stdout", "stderr")
LOGGED_STREAM = "metrics"  # of `hop.log`
# the second one: of event files and of printed lines. Where both have a name, that of `hop.log` counts
METRIC_STREAMS = (LOGGED_STREAM, "tensorboard")
REPORT_STREAMS = (*METRIC_STREAMS, "events", "system")
# the order in which both output streams arrived: lines of time, index in OUTPUT_STREAMS, end offset
OUTPUT_INDEX_STREAM = "output_index"
# what the script logged beside numbers: an index of JSON lines, and the contents (see `domain.media`)
MEDIA_STREAM, MEDIA_DATA_STREAM = "media", "media_data"
STREAMS = (
    MEDIA_DATA_STREAM,
    MEDIA_STREAM,
    *OUTPUT_STREAMS,
    *REPORT_STREAMS,
    OUTPUT_INDEX_STREAM,
    "journal",
)
MAX_OUTPUT_INDEX_BYTES = 64 * 2**20  # far more than a replica writes
JOURNAL_SLACK_BYTES = 2**20  # lines that report omissions
MAX_JOURNAL_BYTES = 2**30  # of a study: a later driver reads all of it


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """output_bytes: of each of stdout and stderr, 0 for no limit. reports_bytes: of each stream of reports, 0
    for no limit. journal_bytes: of the journal, which only studies have. media_bytes: of the media, 0 for no
    limit."""

    output_bytes: int = 0
    reports_bytes: int = 0
    journal_bytes: int = MAX_JOURNAL_BYTES
    media_bytes: int = 0

    def for_run(self, spec: RunSpec) -> StreamLimits:
        """Returns the limits of a run: the smaller of its own and these."""
        return StreamLimits(
            min(filter(None, (self.output_bytes, spec.max_output_bytes)), default=0),
            min(filter(None, (self.reports_bytes, spec.max_metrics_bytes)), default=0),
            0 if spec.study is None else self.journal_bytes,
            self.media_bytes,
        )

    def max_sent_bytes(self, stream: str) -> int | None:
        """Returns the most bytes of a stream that a replica sends, or None without a limit: its start up to
        the limit, and a quarter of the limit of the rest."""
        if stream == OUTPUT_INDEX_STREAM:
            return MAX_OUTPUT_INDEX_BYTES
        if stream == MEDIA_STREAM:
            return MAX_INDEX_BYTES + JOURNAL_SLACK_BYTES
        if stream == MEDIA_DATA_STREAM:
            return self.media_bytes + JOURNAL_SLACK_BYTES if self.media_bytes else None
        if stream not in OUTPUT_STREAMS and stream not in REPORT_STREAMS:
            return self.journal_bytes + JOURNAL_SLACK_BYTES
        limit = self.output_bytes if stream in OUTPUT_STREAMS else self.reports_bytes
        return limit + limit // 4 + JOURNAL_SLACK_BYTES if limit else None


NO_LIMITS = StreamLimits()
